"""What a sequence leaves in the state does not depend on how its tokens came there (cases A7, A8, A10)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model import Model
from nextfit.model.state import LinearState
from nextfit.ops.sparse_attention import KVPages
from tests.engine.drive import OTHER, TINY
from tests.model.drive import Line, Rows, Session, cuts, text
from tests.support.random_model import random_weights, small_config


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@cache
def model(vocabulary: int = 1000) -> Model:
    c: ModelConfig = small_config(**TINY | OTHER | dict(vocab_size=vocabulary, eos_token_id=14))
    return Model(c, random_weights(c, dtype=torch.float64), torch.float64)


def left_behind(session: Session, line: Line) -> dict[str, Tensor]:
    """All that the first `line.computed` tokens of a sequence determine, after its pending rows are committed."""
    state, n, out = session.state, line.computed, {}
    state.commit_slots(torch.tensor([line.slot]), torch.tensor([line.replay]))
    line.replay = 0
    table = torch.tensor(line.pages)
    ratio = session.model.config.indexer_compress_ratio
    out["token history"] = state.tokens.tail[line.slot]
    for i, history in state.ngram.items():
        out[f"n-gram {i}"] = history.tail[line.slot]
    for i, layer in enumerate(state.layers):
        if isinstance(layer, LinearState):
            out[f"convolution {i}"] = layer.conv.tail[line.slot]
            out[f"matrix {i}"] = layer.delta.matrix[line.slot]
        else:
            assert isinstance(layer, KVPages)
            out[f"keys {i}"], out[f"values {i}"] = layer.tokens(table, 0, n)
            out[f"blocks {i}"] = layer.blocks(table, 0, n // ratio)
            ring = torch.arange(n // ratio * ratio, n) % layer.ring.shape[1]
            out[f"open block {i}"] = layer.ring[line.slot, ring]
    return out


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        if a[name].dtype == torch.int64:
            assert torch.equal(a[name], b[name]), name
        else:
            assert a[name].shape == b[name].shape and torch.allclose(a[name], b[name], atol=1e-11), name


def prefill(m: Model, ids: list[int], sizes: list[int]) -> tuple[Session, Line, Tensor]:
    session = Session(m, len(ids) + 20)
    line = session.line()
    x = torch.empty(0)
    for a, b in cuts(len(ids), sizes):
        (x,) = session.step([Rows(line, ids[a:b])])
    return session, line, session.logits(x[-1:])


@pytest.mark.parametrize("n", [1, 3, 63, 64, 65, 127, 128, 129, 257])
def test_a7_chunks(n: int) -> None:
    """Logits and all states; tests/engine has the answers that follow from them."""
    m, ids = model(), [(7 * i + 3) % 1000 for i in range(n)]
    session, line, logits = prefill(m, ids, [n])
    wanted = left_behind(session, line)
    for sizes in ([64], [1] if n < 100 else [63, 2]):
        other, other_line, other_logits = prefill(m, ids, sizes)
        assert torch.allclose(other_logits, logits, atol=1e-11)
        assert_equal(left_behind(other, other_line), wanted)


@pytest.mark.parametrize("lengths", [[37, 53], [5, 40, 13, 8, 31, 21, 17, 26]])
def test_a8_prompts_side_by_side(lengths: list[int]) -> None:
    """In one step, in slots that others used before."""
    m = model()
    session = Session(m, max(lengths), slots=len(lengths))
    lines = [session.line(i + 1) for i in range(len(lengths))]
    session.step([Rows(line, text(20, 1000, seed=9)) for line in lines])
    for line in lines:
        line.computed = 0
    prompts = [text(n, 1000, seed=n, marks={n // 2: 14}) for n in lengths]
    streams = session.step([Rows(line, ids) for line, ids in zip(lines, prompts, strict=True)])
    for line, ids, x in zip(lines, prompts, streams, strict=True):
        alone, alone_line, logits = prefill(m, ids, [len(ids)])
        assert torch.allclose(session.logits(x[-1:]), logits, atol=1e-11)
        assert_equal(left_behind(session, line), left_behind(alone, alone_line))


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
@pytest.mark.parametrize("ahead", range(5))
def test_a10_rejected_drafts_leave_nothing(accepted: int, ahead: int) -> None:
    """Rejection at the first, second, third draft and none, at every place within an index block."""
    m = model(17000)
    prompt = [5, 6, 7, 8, 9, 10, 12, 13][:ahead] + [14542, 11]
    block = [321, 16908, 15, 16]
    session, line, _ = prefill(m, prompt, [len(prompt)])
    session.step([Rows(line, block, decode=True)], accepted=[accepted])
    plain, plain_line, _ = prefill(m, prompt, [len(prompt)])
    for token in block[:accepted]:
        plain.step([Rows(plain_line, [token], decode=True)])
    assert line.computed == plain_line.computed == len(prompt) + accepted
    # first the next step, which commits by itself
    (x,) = session.step([Rows(line, [77, 78], decode=True)])
    (y,) = plain.step([Rows(plain_line, [77, 78], decode=True)])
    assert torch.allclose(x, y, atol=1e-11)
    line.computed, line.replay = line.computed - 2, 0
    plain_line.computed, plain_line.replay = plain_line.computed - 2, 0
    got, wanted = left_behind(session, line), left_behind(plain, plain_line)
    assert_equal(got, wanted)
    assert got["token history"].flatten().tolist() == ([11] + block[:accepted])[-2:]


@pytest.mark.parametrize("seed", range(6))
def test_any_steps(seed: int) -> None:
    """Prefill rows, single rows and verify rows of which some are rejected, in any order."""
    rng, m = random.Random(seed), model()
    ids = text(90, 1000, seed=seed, marks={40: 14})
    session, at = Session(m, 110), 0
    line = session.line()
    while at < len(ids):
        if at and rng.random() < 0.6:
            right = min(rng.randint(1, 5), len(ids) - at)
            block = ids[at : at + right] + [rng.randrange(1000) for _ in range(rng.randint(0, 5 - right))]
            session.step([Rows(line, block, decode=True)], accepted=[right])
            at += right
        else:
            n = rng.choice([1, 2, 7, 20])
            session.step([Rows(line, ids[at : at + n])])
            at += len(ids[at : at + n])
    whole, whole_line, _ = prefill(m, ids, [len(ids)])
    assert line.computed == whole_line.computed == len(ids)
    assert_equal(left_behind(session, line), left_behind(whole, whole_line))


def test_copied_slots_are_whole() -> None:
    """A copy goes on like the original, and the original does not notice."""
    m = model()
    ids = text(30, 1000)
    session = Session(m, 60, slots=2)
    line = session.line(1)
    session.step([Rows(line, ids)])
    session.step([Rows(line, [5, 6, 7], decode=True)], accepted=[2])
    session.state.copy_slots(torch.tensor([1]), torch.tensor([2]))
    copy = Line(2, line.pages, line.computed, line.replay)
    wanted = left_behind(session, line)
    (x,) = session.step([Rows(copy, [9, 10], decode=True)])
    copy.computed, copy.replay = copy.computed - 2, 0
    assert_equal(left_behind(session, copy), wanted)
    (y,) = session.step([Rows(line, [9, 10], decode=True)])
    assert torch.allclose(x, y, atol=1e-11)

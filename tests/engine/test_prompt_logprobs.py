"""Log-probabilities of a prompt's own tokens, against the logits of the whole text without an engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine, plan_limits
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Sampled
from nextfit.errors import RequestError
from nextfit.llm import LLM, logits
from nextfit.model import Buffers, Model
from tests.engine.drive import ENDS, tiny_model
from tests.model.drive import trunk_logits
from tests.support.scripted_model import ScriptedEngine

CHUNK = 16
MODEL = 1  # one that does not repeat what it reads


def ids(n: int) -> list[int]:
    return [(7 * i + i * i % 13) % 48 for i in range(n)]


def make(**limits: Any) -> Engine:
    values = dict(context=300, sequences=4, prefill_chunk=CHUNK, draft=3) | limits
    return Engine(tiny_model(MODEL), EngineConfig(**values), ENDS)


def request(id: str, prompt: list[int], **params: Any) -> Request:
    settings = dict(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=3, ignore_eos=True) | params
    return Request(id, prompt, SamplingParams(**settings))


class Told:
    """What a request was told."""

    def __init__(self) -> None:
        self.prompt: list[Sampled] = []
        self.tokens: list[Sampled] = []
        self.pieces: list[int] = []  # lengths of what was told of the prompt at once
        self.last: Output | None = None

    def add(self, out: Output) -> None:
        assert not (self.tokens and out.prompt), "the answer began before the prompt was told"
        self.prompt += out.prompt
        self.tokens += out.tokens
        self.pieces += [len(out.prompt)] if out.prompt else []
        self.last = out if out.finish_reason else self.last


def run(e: Engine, *requests: Request, preempt: frozenset[int] = frozenset()) -> dict[str, Told]:
    """All come together; the one computed last is sent back to the queue before the steps `preempt`."""
    found = {r.id: Told() for r in requests}
    for r in requests:
        e.add(r)
    step = 0
    while e.has_work():
        if step in preempt:
            e.scheduler._preempt(e.scheduler._last(), [])
        for out in e.step():
            found[out.request_id].add(out)
        e.scheduler.check()
        step += 1
    return found


def check(prompt: list[int], told: list[Sampled], alternatives: int = 3) -> None:
    """Values by an own log-softmax over the model's logits of the whole text."""
    rows = trunk_logits(tiny_model(MODEL), prompt).tolist()
    assert [t.token for t in told] == prompt[1:]
    for token, row in zip(told, rows, strict=False):
        total = math.log(math.fsum(map(math.exp, row)))
        likeliest = sorted(range(len(row)), key=lambda i: (-row[i], i))[:alternatives]
        assert token.logprob is not None and abs(token.logprob - (row[token.token] - total)) < 1e-9
        assert [i for i, _ in token.top] == likeliest
        assert all(abs(p - (row[i] - total)) < 1e-9 for i, p in token.top)


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize("n", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 5, 4 * CHUNK + 1, 100])
def test_a13_chunk_borders(n: int, draft: int) -> None:
    prompt = ids(n)
    told = run(make(draft=draft), request("a", prompt))["a"]
    check(prompt, told.prompt)
    assert max(told.pieces, default=0) <= CHUNK
    plain = run(make(draft=draft), request("a", prompt, prompt_logprobs=None))["a"]
    assert [(t.token, t.logprob) for t in told.tokens] == [(t.token, t.logprob) for t in plain.tokens]
    assert len(told.tokens) == 4 and not plain.prompt


@pytest.mark.parametrize("alternatives", [0, 20])
def test_alternatives(alternatives: int) -> None:
    told = run(make(), request("a", ids(20), prompt_logprobs=alternatives))["a"]
    check(ids(20), told.prompt, alternatives)


@pytest.mark.parametrize("snapshots", [0, 16])
def test_a_cached_prefix_is_computed_again(snapshots: int) -> None:
    """Values and tokens are those of the first time; who does not ask has the hit, also afterwards."""
    e, prompt = make(snapshots=snapshots), ids(70)
    first = run(e, request("a", prompt))["a"]
    again = run(e, request("a", prompt))["a"]
    check(prompt, again.prompt)
    assert first.prompt == again.prompt and first.tokens == again.tokens
    assert again.last is not None and again.last.stats is not None and again.last.stats.cached_tokens == 0
    plain = run(e, request("a", prompt, prompt_logprobs=None))["a"]
    assert plain.last is not None and plain.last.stats is not None
    assert plain.last.stats.cached_tokens == (64 if snapshots else 0)
    assert [t.token for t in plain.tokens] == [t.token for t in first.tokens]


@pytest.mark.parametrize("draft", [0, 3])
def test_among_others(draft: int) -> None:
    """Prompts that begin alike, that share steps, some of which do not ask; sampled, with drafts."""
    prompts = {"a": ids(70), "b": ids(41), "c": [5, *ids(50)], "d": ids(70)}
    params: dict[str, dict] = {i: dict(temperature=1, seed=3, max_tokens=12) for i in prompts}
    params["b"]["prompt_logprobs"] = None
    asked = [request(i, p, **params[i]) for i, p in prompts.items()]
    together = run(make(draft=draft), *asked)
    for r in asked:
        if r.id != "b":
            check(r.prompt, together[r.id].prompt)
        alone = run(make(draft=0, prefill_chunk=256), r)[r.id]
        assert [t.token for t in alone.tokens] == [t.token for t in together[r.id].tokens]
    assert not together["b"].prompt


@pytest.mark.parametrize("snapshot_every", [16, 2048])
@pytest.mark.parametrize("steps", [{1}, {3}, {2, 3}, {1, 4, 7}, {9}])
def test_nothing_is_told_twice_after_a_preemption(steps: set[int], snapshot_every: int) -> None:
    """It goes on from a snapshot where there is one that leaves out nothing untold."""
    e = make(snapshot_every=snapshot_every, sequences=2)
    told = run(e, request("a", ids(90), max_tokens=6), preempt=frozenset(steps))["a"]
    assert e.scheduler.preemptions == len(steps)
    check(ids(90), told.prompt)
    assert len(told.tokens) == 6


def test_it_goes_on_from_a_snapshot() -> None:
    """After a preemption, of the rows that are told no more are computed again than lie behind the last snapshot."""
    e = make(snapshot_every=16, sequences=2)
    e.add(request("a", ids(90)))
    told = [t for _ in range(3) for out in e.step() for t in out.prompt]
    e.scheduler._preempt(e.scheduler._last(), [])
    e.scheduler.schedule()
    (s,) = e.scheduler.running
    assert s.computed == s.scored == len(told) == 48


@pytest.mark.parametrize("draft", [0, 3])
def test_few_rows_have_logits_at_a_time(monkeypatch: pytest.MonkeyPatch, draft: int) -> None:
    """As many as the plan has memory for, that of the rows which choose tokens, whatever the chunk."""
    seen: list[int] = []
    plain = Model.logits

    def logits(self: Model, x: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        seen.append(len(x))
        return plain(self, x, decode_rows, buffers)

    monkeypatch.setattr(Model, "logits", logits)
    e = make(draft=draft, prefill_chunk=128)
    run(e, request("a", ids(90)), request("b", ids(30)))
    assert max(seen) == 4 * (1 + draft) == plan_limits(e.config, e.model.dtype).decode_rows
    assert sum(seen) >= 89 + 29


def test_no_answer_at_all() -> None:
    """With max_tokens 0 the prompt is computed and told, and left in the prefix cache."""
    e, prompt = make(), ids(70)
    told = run(e, request("a", prompt, max_tokens=0))["a"]
    check(prompt, told.prompt)
    assert told.last is not None and told.last.stats is not None
    assert (told.last.finish_reason, told.last.stats.completion_tokens, told.tokens) == ("length", 0, [])
    next_one = run(e, request("b", prompt, prompt_logprobs=None))["b"].last
    assert next_one is not None and next_one.stats is not None and next_one.stats.cached_tokens == 64


def test_an_end_token_in_the_prompt_ends_nothing() -> None:
    prompt = [3, ENDS[0], 4, ENDS[1], 5]
    check(prompt, run(make(), request("a", prompt))["a"].prompt)


def test_cancelled_in_the_prompt() -> None:
    e = make()
    e.add(request("a", ids(90)))
    e.step()
    e.cancel("a")
    (out,) = e.step()
    assert out.finish_reason == "cancelled" and not e.has_work()
    check(ids(40), run(e, request("b", ids(40)))["b"].prompt)


def test_paranoid() -> None:
    """Nothing is read that was not written, with one row of logits at a time."""
    e = make(paranoid=True, sequences=1, draft=0)
    check(ids(40), run(e, request("a", ids(40)))["a"].prompt)


def test_the_scripted_model() -> None:
    """What server tests compare with."""
    e = ScriptedEngine(lambda prompt: [5], tokens_per_step=4)
    e.model.learn([1, 2], [3])
    told = run(e, request("a", [1, 2, 3, 9], prompt_logprobs=0))["a"].prompt
    surely, unlikely = told[1].logprob, told[2].logprob
    assert surely is not None and unlikely is not None
    assert surely > -0.001 and unlikely < -10


def test_as_a_library() -> None:
    """On the bundled model; the values are those of its logits in one piece."""
    llm = LLM(context=512, sequences=1, prefill_chunk=32, dtype="float64")
    prompt = [(37 * i) % 500 for i in range(80)]
    params: dict = {"max_tokens": 1, "prompt_logprobs": 1}
    (result,) = llm.generate(prompt_token_ids=[prompt], params=params)
    rows = logits(None, np.array(prompt), dtype="float64").astype(np.float64)
    told = result.prompt_logprobs
    assert told is not None and [t.token for t in told] == prompt[1:]
    for token, row in zip(told, rows, strict=False):
        assert token.logprob is not None
        assert abs(token.logprob - (row[token.token] - np.log(np.exp(row).sum()))) < 1e-5
    assert llm.generate(prompt_token_ids=[prompt], params={"max_tokens": 1})[0].prompt_logprobs is None


@pytest.mark.parametrize("value", [-1, 21, True, "1"])
def test_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="prompt_logprobs is") as caught:
        make().add(request("a", [1], prompt_logprobs=value))
    assert caught.value.param == "prompt_logprobs"

"""Logits of the trunk against transformers, float32, 1e-4 absolute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model import Model
from nextfit.ops import experts
from nextfit.ops.select import top_k_ascending
from nextfit.ops.sparse_attention import reference as sparse
from tests.model.drive import Rows, Session, text, trunk_logits
from tests.oracle.reference import Reference
from tests.support.random_model import random_parts, resident_weights, small_config

TOLERANCE = 1e-4
EOS = 304
FOUR = dict(num_hidden_layers=4, mtp_num_hidden_layers=0)


def make(c: ModelConfig, parts: dict[str, Tensor]) -> Model:
    return Model(c, resident_weights(c, parts), torch.float32)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


class Pair:
    """The same weights in both implementations, and one text's logits by transformers."""

    def __init__(self, c: ModelConfig, parts: dict[str, Tensor], ids: list[int]) -> None:
        self.config, self.parts, self.ids = c, parts, ids
        self.reference, self.model = Reference(c, parts), make(c, parts)
        self.logits = self.reference.logits(ids)


@pytest.fixture(scope="module")
def small() -> Pair:
    """Eight layers, and a text of six times the budget with boundary tokens inside."""
    c = small_config(mtp_num_hidden_layers=0)
    ids = text(96, c.vocab_size, marks={0: EOS, 20: EOS, 41: EOS, 42: EOS})
    return Pair(c, random_parts(c), ids)


def test_beyond_the_budget(small: Pair) -> None:
    assert len(small.ids) >= 5 * small.config.indexer_budget
    assert distance(trunk_logits(small.model, small.ids), small.logits) < TOLERANCE
    dense = make(replace(small.config, indexer_budget=128), small.parts)
    assert distance(trunk_logits(dense, small.ids), small.logits) > 100 * TOLERANCE  # the choice matters


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_short(small: Pair, n: int) -> None:
    assert (
        distance(trunk_logits(small.model, small.ids[:n]), small.reference.logits(small.ids[:n])) < TOLERANCE
    )


@pytest.mark.parametrize(
    ("sizes", "decode", "page_size"),
    [
        pytest.param([7, 1, 30, 3, 28], False, 16, id="chunks"),
        pytest.param([63, 2], False, 4, id="chunks across 64"),
        pytest.param([1], False, 16, id="prefill one by one"),
        pytest.param([1], True, 4, id="decode one by one"),
        pytest.param([5, 1, 3], True, 16, id="verify"),
    ],
)
def test_cut_anyhow(small: Pair, sizes: list[int], decode: bool, page_size: int) -> None:
    got = trunk_logits(small.model, small.ids, sizes, decode, page_size)
    assert distance(got, small.logits) < TOLERANCE


def test_boundary_token_cuts_the_ngrams(small: Pair) -> None:
    """A model that looks across the boundary gives other logits, right after it."""
    blind = make(replace(small.config, eos_token_id=EOS + 1), small.parts)
    error = (trunk_logits(blind, small.ids) - small.logits).abs().amax(1)
    assert error[21] > 100 * TOLERANCE


FAVOURITES = [0, 255, 256, 257, 300, 338, 400, 500, 510, 511]


def favour(c: ModelConfig, parts: dict[str, Tensor], favourites: list[int]) -> dict[str, Tensor]:
    """Weights under which every token of every layer chooses `favourites`.

    Value 0 of every stream is kept positive: embeddings set it and no block writes it, so that a router
    row can rely on it.
    """
    out = {k: v.clone() for k, v in parts.items()}
    out["embed_tokens.weight"][:, 0] = 8
    for name, x in out.items():
        if name.endswith(
            ("o_proj.weight", "out_proj.weight", "expert.down_proj.weight", "value_proj.weight")
        ):
            x[0] = 0
        elif name.endswith("experts.down_proj"):
            x[:, 0] = 0
        elif name.endswith("mlp.gate.weight"):
            x[favourites, 0] += 30
    return out


@pytest.mark.parametrize("n", [16, 257, 300, 512])
def test_experts(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    favourites = sorted({e for e in FAVOURITES if e < n} | {n - 1})
    c = small_config(
        **FOUR, num_experts=n, num_experts_per_tok=len(favourites), moe_intermediate_size=8, hidden_size=32
    )
    c = replace(c, ple_embed_dim=32)
    pair = Pair(c, favour(c, random_parts(c), favourites), text(40, c.vocab_size))
    seen: list[Tensor] = []

    def route(logits: Tensor, k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        ids, weights = plain(logits, k, normalise)
        seen.append(ids)
        return ids, weights

    plain = experts.route
    monkeypatch.setattr(experts.reference, "route", route)
    whole = trunk_logits(pair.model, pair.ids)
    assert all(ids.tolist() == [favourites] * len(pair.ids) for ids in seen) and len(seen) == 4
    assert n <= 256 or favourites[-1] > 255
    assert distance(whole, pair.logits) < TOLERANCE
    assert distance(trunk_logits(pair.model, pair.ids, [5], decode=True), pair.logits) < TOLERANCE


VARIANTS = {
    "two n-gram layers": dict(num_hidden_layers=6, ple_layers=(1, 4), mtp_num_hidden_layers=0),
    "silu output gate": dict(**FOUR, output_gate_type="silu"),
    "1 value head per key head": dict(**FOUR, linear_num_value_heads=2),
    "4 value heads per key head": dict(**FOUR, linear_num_value_heads=8),
    "1 key head": dict(**FOUR, linear_num_key_heads=1, linear_num_value_heads=3),
    "weights of experts not normalised": dict(**FOUR, norm_topk_prob=False),
    "tied head": dict(**FOUR, tie_word_embeddings=True),
    "2 streams": dict(**FOUR, hc_count=2),
    "other widths": dict(
        **FOUR, linear_value_head_dim=24, num_attention_heads=3, num_key_value_heads=1, ple_embed_dim=48
    ),
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_variants(changes: dict) -> None:
    c = small_config(**changes)
    pair = Pair(c, random_parts(c, seed=3), text(80, c.vocab_size, seed=3, marks={30: EOS}))
    assert distance(trunk_logits(pair.model, pair.ids), pair.logits) < TOLERANCE
    assert distance(trunk_logits(pair.model, pair.ids, [31, 5]), pair.logits) < TOLERANCE
    assert distance(trunk_logits(pair.model, pair.ids[:40], [1], decode=True), pair.logits[:40]) < TOLERANCE


def _reorder_value_heads(c: ModelConfig, parts: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    nk, dk, dv = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
    wide = (order[:, None] * dv + torch.arange(dv)).flatten()
    mixed = torch.cat([torch.arange(2 * nk * dk), 2 * nk * dk + wide])
    rows = {
        "in_proj_qkv.weight": mixed,
        "conv1d.weight": mixed,
        "in_proj_z.weight": wide,
        "in_proj_a.weight": order,
        "in_proj_b.weight": order,
        "A_log": order,
        "dt_bias": order,
    }
    out = dict(parts)
    for name, x in parts.items():
        _, here, rest = name.partition("linear_attn.")
        if here and rest in rows:
            out[name] = x[rows[rest]]
        elif rest == "out_proj.weight":
            out[name] = x[:, wide]
    return out


def _tiles(c: ModelConfig) -> Tensor:
    return torch.arange(c.linear_num_value_heads).view(c.linear_num_key_heads, -1).T.flatten()


def tile_value_heads(c: ModelConfig, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same model with its value heads in GGUF's order: head v reads key head v % key heads."""
    return _reorder_value_heads(c, parts, _tiles(c))


def group_value_heads(c: ModelConfig, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `tile_value_heads`."""
    return _reorder_value_heads(c, parts, _tiles(c).argsort())


def test_tiled_value_heads(small: Pair) -> None:
    parts = tile_value_heads(small.config, small.parts)
    tiled = make(replace(small.config, value_heads_tiled=True), parts)
    assert distance(trunk_logits(tiled, small.ids), small.logits) < TOLERANCE
    assert distance(trunk_logits(tiled, small.ids[:48], [4], decode=True), small.logits[:48]) < TOLERANCE
    wrong = make(small.config, parts)
    assert distance(trunk_logits(wrong, small.ids), small.logits) > 100 * TOLERANCE


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (2, 0, 1, 5, 3, 4)])
def test_ragged_batch(small: Pair, order: tuple[int, ...]) -> None:
    """Three sequences decode, three prefill, in one step; each as when alone."""
    ids = [text(n, 320, seed=n, marks={n // 2: EOS}) for n in (70, 30, 9, 66, 1, 90)]
    last = [1, 5, 3, 40, 1, 17]  # rows of the mixed step
    session = Session(small.model, 90, slots=11, page_size=4)
    lines = [session.line(slot) for slot in (7, 2, 11, 5, 3, 8)]
    before = [Rows(line, t[:-n]) for line, t, n in zip(lines, ids, last, strict=True) if t[:-n]]
    with torch.no_grad():
        session.step(before)
        streams = session.step([Rows(lines[i], ids[i][-last[i] :], i < 3) for i in order])
        for i, x in zip(order, streams, strict=True):
            got = session.logits(x, len(x) if i < 3 else 0)
            assert distance(got, small.reference.logits(ids[i])[-last[i] :]) < TOLERANCE, i


def test_equal_scores_go_to_the_lower_block(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero index query makes all block scores equal: the first blocks are chosen, whole or cut."""
    parts = {
        k: torch.full_like(v, -1) if k.endswith("q_layernorm.weight") else v for k, v in small.parts.items()
    }
    pair = Pair(small.config, parts, small.ids)
    for sizes, decode in (([96], False), ([5], True)):
        assert distance(trunk_logits(pair.model, pair.ids, sizes, decode), pair.logits) < TOLERANCE

    def higher(query: Tensor, keys: Tensor, visible: Tensor, k: int) -> Tensor:
        return visible[:, None] - k + torch.arange(k)

    monkeypatch.setattr(sparse, "best_blocks", higher)
    assert distance(trunk_logits(pair.model, pair.ids), pair.logits) > 100 * TOLERANCE
    assert top_k_ascending(torch.zeros(1, 9), 4).tolist() == [[0, 1, 2, 3]]

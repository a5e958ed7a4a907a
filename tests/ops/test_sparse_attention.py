"""Block choice and attention over pages against loops over tokens in float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nextfit.ops.select import top_k_ascending
from nextfit.ops.sparse_attention import RING, KVPages, attend, best_blocks, completing_rows
from nextfit.ops.sparse_attention import index as index_module
from nextfit.ops.sparse_attention import reference as reference_module
from tests.ops.common import ROWS, batch, generator

HEADS, KV_HEADS, DIM, INDEX_HEADS, INDEX_DIM, RATIO = 4, 2, 6, 2, 5, 4


def naive_blocks(query: Tensor, keys: Tensor, visible: int, k: int) -> list[int]:
    """`query` [heads, dim] of one row."""
    scores = []
    for b in range(visible):
        dots = (max(0.0, float(q.double() @ keys[b].double())) for q in query)
        scores.append(sum(dots) / math.sqrt(query.shape[1]))
    return sorted(sorted(range(visible), key=lambda b: (-scores[b], b))[:k])


def between(keys: Tensor) -> Callable[[int, int], Tensor]:
    return lambda first, end: keys[first:end]


@pytest.mark.parametrize("tile", [1, 3, 8, 1024])
@pytest.mark.parametrize("extra", [0, 1, 7, 8, 9, 15, 16, 17])
def test_best_blocks(tile: int, extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`extra` blocks beyond the k that are always chosen: every edge of the tiles, on both sides."""
    monkeypatch.setattr(index_module, "TILE", tile)
    g, k = generator(tile + extra), 4
    keys = torch.randn(k + extra + 3, INDEX_DIM, generator=g, dtype=torch.float64)
    for rows in (1, 5):
        query = torch.randn(rows, INDEX_HEADS, INDEX_DIM, generator=g, dtype=torch.float64)
        visible = torch.randint(k, k + extra + 1, (rows,), generator=g)
        visible[-1] = k + extra
        got = best_blocks(query, between(keys), visible, k)
        wanted = [naive_blocks(q, keys, int(v), k) for q, v in zip(query, visible, strict=True)]
        assert got.tolist() == wanted


@pytest.mark.parametrize("tile", [1, 4, 1024])
def test_b31_equal_scores(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rectified scores are often exactly 0: the lower blocks win, also across tiles."""
    monkeypatch.setattr(index_module, "TILE", tile)
    visible = torch.tensor([20, 7, 3])
    keys = torch.full((20, INDEX_DIM), -1.0)
    query = torch.ones(3, INDEX_HEADS, INDEX_DIM)
    assert best_blocks(query, between(keys), visible, 3).tolist() == [[0, 1, 2]] * 3
    keys[[5, 11, 19]] = 1.0
    assert best_blocks(query, between(keys), visible, 3).tolist() == [[5, 11, 19], [0, 1, 5], [0, 1, 2]]


def test_best_blocks_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product wider than one tile, however long the history."""
    widths = []

    def spy(scores: Tensor, k: int) -> Tensor:
        widths.append(scores.shape[1])
        return top_k_ascending(scores, k)

    monkeypatch.setattr(index_module, "top_k_ascending", spy)
    monkeypatch.setattr(index_module, "TILE", 16)
    best_blocks(torch.ones(2, 1, 3), between(torch.randn(1000, 3)), torch.tensor([1000, 990]), 8)
    assert max(widths) <= 8 + 16 and len(widths) == 62


@pytest.mark.parametrize("seed", range(8))
def test_pooling(seed: int) -> None:
    """Blocks of several sequences that grow in steps of any size and are rewound, on slots in use before."""
    rng, g, slots = random.Random(seed), generator(seed), 3
    f64 = torch.float64
    empty = torch.empty(0)
    pages = KVPages(empty, empty, empty, torch.full((slots + 1, RING, 2), torch.nan, dtype=f64))
    known: dict[int, Tensor] = {}
    for _ in range(30):
        order = rng.sample(range(1, slots + 1), rng.randint(1, slots))
        for s in order:
            if s not in known or rng.random() < 0.1:
                known[s] = torch.empty(0, 2, dtype=f64)
            elif rng.random() < 0.5:  # of the last rows some were rejected
                known[s] = known[s][: max(0, len(known[s]) - rng.randint(0, 12))]
        lengths = [rng.choice([1, 2, 5, 9, 31, 32, 33, 70]) for _ in order]
        b = batch(lengths, [len(known[s]) for s in order], slots=order)
        raw = torch.randn(sum(lengths), 2, generator=g, dtype=f64)
        for s, x in zip(order, raw.split(lengths), strict=True):
            known[s] = torch.cat([known[s], x])
        rows = completing_rows(b, RATIO)
        wanted = []
        for s, first, n in zip(order, b.firsts, lengths, strict=True):
            ends = [p for p in range(first, first + n) if p % RATIO == RATIO - 1]
            wanted += [known[s][p - RATIO + 1 : p + 1].mean(0) for p in ends]
        assert len(rows) == len(wanted)
        got = pages.pool(b, raw, rows, RATIO)
        assert all(torch.allclose(x, y, atol=1e-14) for x, y in zip(got, wanted, strict=True))


class Cache:
    """Sequences of random keys, values and block keys, written into shuffled pages."""

    def __init__(self, lengths: list[int], page_size: int, shift: int, seed: int) -> None:
        g = generator(seed)
        self.lengths = lengths
        width = -(-(max(lengths) + shift + 1) // page_size)
        count = len(lengths) * width
        self.table = (torch.randperm(count, generator=g) + 1).view(len(lengths), width)
        f64 = torch.float64
        self.pages = KVPages(
            torch.full((count + 1, page_size, KV_HEADS, DIM), torch.nan, dtype=f64),
            torch.full((count + 1, page_size, KV_HEADS, DIM), torch.nan, dtype=f64),
            torch.full((count + 1, page_size // RATIO, INDEX_DIM), torch.nan, dtype=f64),
            torch.empty(0),
            shift,
        )
        b = batch(lengths, pages=self.table)
        rows = completing_rows(b, RATIO)
        self.key, self.value = (
            torch.randn(sum(lengths), KV_HEADS, DIM, generator=g, dtype=f64) for _ in "kv"
        )
        block = torch.randn(len(rows), INDEX_DIM, generator=g, dtype=f64)
        block[torch.rand(len(rows), generator=g) < 0.3] = 0  # equal scores
        self.pages.write(b, self.key, self.value)
        self.pages.write_blocks(b, rows, RATIO, block)
        self.starts = b.starts
        self.blocks = [block[b.sequence[rows] == s] for s in range(len(lengths))]

    def naive(self, s: int, p: int, query: Tensor, index_query: Tensor, budget: int) -> Tensor:
        """Output [heads, dim] of the row at position p of sequence s."""
        complete = (p + 1) // RATIO
        chosen = naive_blocks(index_query, self.blocks[s], complete, budget // RATIO)
        seen = [t for b in chosen for t in range(RATIO * b, RATIO * b + RATIO)]
        seen += range(complete * RATIO, p + 1)
        key, value = (x[self.starts[s] :][seen] for x in (self.key, self.value))
        out = torch.empty(HEADS, DIM, dtype=torch.float64)
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            weights = torch.softmax(key[:, kv] @ query[h] / math.sqrt(DIM), 0)
            out[h] = weights @ value[:, kv]
        return out


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("decode", [0, 2, 4])
@pytest.mark.parametrize("stage", [4, 20, 1024])
def test_attend(shift: int, page_size: int, decode: int, stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered and streamed rows, below, at and beyond the budget, in one ragged step."""
    monkeypatch.setattr(reference_module, "STAGE", stage)
    budget, rows = 16, [5, 1, 9, 23]
    cache = Cache([70, 20, 9, 33], page_size, shift, seed=decode)
    firsts = [n - r for n, r in zip(cache.lengths, rows, strict=True)]
    b = batch(rows, firsts, decode, pages=cache.table)
    g = generator(7)
    query = torch.randn(sum(rows), HEADS, DIM, generator=g, dtype=torch.float64)
    index_query = torch.randn(sum(rows), INDEX_HEADS, INDEX_DIM, generator=g, dtype=torch.float64)
    got = attend(query, index_query, cache.pages, b, budget, RATIO)
    for row, (s, p) in enumerate(zip(b.sequence.tolist(), b.positions.tolist(), strict=True)):
        wanted = cache.naive(s, p, query[row], index_query[row], budget)
        assert torch.allclose(got[row], wanted, atol=1e-12), (s, p)


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("decode", [0, 1])
def test_attend_row_counts(n: int, decode: int) -> None:
    budget, cache = 16, Cache([40 + n], 16, 0, seed=n)
    b = batch([n], [40], decode, pages=cache.table)
    g = generator(n)
    query = torch.randn(n, HEADS, DIM, generator=g, dtype=torch.float64)
    index_query = torch.randn(n, INDEX_HEADS, INDEX_DIM, generator=g, dtype=torch.float64)
    got = attend(query, index_query, cache.pages, b, budget, RATIO)
    for row in {0, n // 2, n - 1}:
        wanted = cache.naive(0, 40 + row, query[row], index_query[row], budget)
        assert torch.allclose(got[row], wanted, atol=1e-12)


def test_both_ways_to_attend_to_a_part() -> None:
    """A row that sees nothing of the part has an output of zeros and no weight in either."""
    g = generator(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=g, dtype=torch.float64) for n in (5, 7, 7))
    mask = torch.rand(5, 7, generator=g) < 0.5
    mask[:, 0], mask[3] = True, False
    out, total = reference_module._part(q, k, v, mask)
    bias = torch.zeros(5, 7, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    plain, plain_total = reference_module._plain(q, k, v, bias)
    assert torch.allclose(out, plain, atol=1e-12) and not plain[:, :, 3].any()
    seen = [0, 1, 2, 4]
    assert torch.allclose(total[..., seen], plain_total[..., seen], atol=1e-12)
    assert (total[..., 3] < -1e300).all() and total.isfinite().all()


def test_a_page_with_shift_holds_only_its_own_tokens() -> None:
    """Rows of a draft cache begin in slot 1; its first slots belong to nobody."""
    cache = Cache([15], 16, 1, seed=0)
    first = cache.pages.key[cache.table[0, 0]]
    assert first[0].isnan().all() and not first[1:].isnan().any()
    key, value = cache.pages.tokens(cache.table[0], 0, 15)
    assert torch.equal(key, cache.key) and torch.equal(value, cache.value)
    key, value = cache.pages.tokens(cache.table[0], 4, 9)
    assert torch.equal(key, cache.key[4:9]) and torch.equal(value, cache.value[4:9])
    some = torch.tensor([[0, 14], [3, 3]])
    key, value = cache.pages.gather(cache.table[0], some)
    assert torch.equal(key, cache.key[some]) and torch.equal(value, cache.value[some])
    assert torch.equal(cache.pages.blocks(cache.table[0], 0, 3), cache.blocks[0])
    assert torch.equal(cache.pages.blocks(cache.table[0], 1, 3), cache.blocks[0][1:])

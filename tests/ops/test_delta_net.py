"""The gated delta rule: recurrent rows, chunks and replayed logs against one token at a time."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from nextfit.ops.delta_net import DeltaState, gated_delta_rule
from tests.ops.common import ROWS, batch, generator

HEADS, KEY, VALUE, WINDOW = 3, 4, 5, 6
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs(n: int, seed: int, dtype: torch.dtype = torch.float64) -> Inputs:
    g = generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n, HEADS, *shape, generator=g, dtype=torch.float64)

    query, key = (x / x.norm(dim=-1, keepdim=True) for x in (normal(KEY), normal(KEY)))
    decay = -torch.rand(n, HEADS, generator=g, dtype=torch.float64) * 0.5
    beta = torch.rand(n, HEADS, generator=g, dtype=torch.float64)
    return tuple(x.to(dtype) for x in (query, key, normal(VALUE), decay, beta))  # type: ignore[return-value]


def naive(matrix: Tensor, rows: Inputs) -> tuple[Tensor, Tensor]:
    """(outputs, last matrix), the four lines of the recurrence for each token and head."""
    matrix, out = matrix.clone(), torch.empty(len(rows[0]), HEADS, VALUE, dtype=torch.float64)
    for t, (q, k, v, g, b) in enumerate(zip(*rows, strict=True)):
        for h in range(HEADS):
            s = matrix[h] * g[h].exp()
            s = s + torch.outer(k[h], b[h] * (v[h] - s.T @ k[h]))
            matrix[h], out[t, h] = s, s.T @ q[h]
    return out, matrix


def state(slots: int, dtype: torch.dtype = torch.float64) -> DeltaState:
    """Storage of `slots` sequences, poisoned."""
    shapes = ((KEY, VALUE),), (WINDOW, KEY), (WINDOW, VALUE)
    return DeltaState(
        torch.full((slots + 1, HEADS, *shapes[0][0]), torch.nan, dtype=dtype),
        torch.full((slots + 1, WINDOW, HEADS, KEY), torch.nan, dtype=dtype),
        torch.full((slots + 1, WINDOW, HEADS, VALUE), torch.nan, dtype=dtype),
        torch.full((slots + 1, WINDOW, HEADS), torch.nan, dtype=dtype),
        torch.full((slots + 1, WINDOW, HEADS), torch.nan, dtype=dtype),
    )


def take(rows: Inputs, part: slice) -> Inputs:
    return tuple(x[part] for x in rows)  # type: ignore[return-value]


ZERO = torch.zeros(HEADS, KEY, VALUE, dtype=torch.float64)


@pytest.mark.parametrize("n", [*ROWS, 127, 128, 129, 200])
def test_chunks(n: int) -> None:
    rows, s = inputs(n, n), state(1)
    out = gated_delta_rule(s, batch([n]), *rows)
    wanted, matrix = naive(ZERO, rows)
    assert torch.allclose(out, wanted, atol=1e-12) and torch.allclose(s.matrix[1], matrix, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, WINDOW])
def test_verify_rows_are_only_logged(n: int) -> None:
    rows, s = inputs(n, n), state(2)
    s.matrix[2] = inputs(KEY, 9)[2].transpose(0, 1)
    before = s.matrix.clone()
    out = gated_delta_rule(s, batch([n], [70], 1, slots=[2]), *rows)
    assert torch.allclose(out, naive(before[2], rows)[0], atol=1e-12)
    assert torch.equal(s.matrix[2], before[2]) and s.matrix[:2].isnan().all()


@pytest.mark.parametrize("accepted", range(1, WINDOW + 1))
@pytest.mark.parametrize("then", ["decode", "prefill"])
def test_replay(accepted: int, then: str) -> None:
    """The next step commits exactly the accepted rows, whatever kind of step it is."""
    start, tried, after, s = inputs(10, 1), inputs(WINDOW, 2), inputs(3, 3), state(1)
    gated_delta_rule(s, batch([10]), *start)
    gated_delta_rule(s, batch([WINDOW], [10], 1), *tried)
    out = gated_delta_rule(s, batch([3], [10 + accepted], int(then == "decode"), replay=[accepted]), *after)
    _, matrix = naive(ZERO, start)
    _, matrix = naive(matrix, take(tried, slice(accepted)))
    wanted, last = naive(matrix, after)
    assert torch.allclose(out, wanted, atol=1e-12)
    assert torch.allclose(s.matrix[1], matrix if then == "decode" else last, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_random_steps(seed: int) -> None:
    """Several sequences at once, cut and accepted anyhow, on slots that others used before."""
    rng, slots = random.Random(seed), 4
    s, matrix = state(slots), {}
    length: dict[int, int] = {}
    pending: dict[int, int] = {}
    for step in range(12):
        taken = rng.sample(range(1, slots + 1), rng.randint(1, slots))
        for slot in taken:
            if slot not in length or rng.random() < 0.15:
                length[slot], pending[slot], matrix[slot] = 0, 0, ZERO
        decode = [slot for slot in taken if length[slot] and rng.random() < 0.6]
        order = decode + [slot for slot in taken if slot not in decode]
        lengths = [
            rng.randint(1, WINDOW) if slot in decode else rng.choice([1, 7, 63, 64, 65]) for slot in order
        ]
        rows = inputs(sum(lengths), 100 * seed + step)
        b = batch(
            lengths,
            [length[slot] for slot in order],
            len(decode),
            slots=order,
            replay=[pending[slot] for slot in order],
        )
        out, row = gated_delta_rule(s, b, *rows), 0
        for slot, n in zip(order, lengths, strict=True):
            own = take(rows, slice(row, row + n))
            wanted, _ = naive(matrix[slot], own)
            assert torch.allclose(out[row : row + n], wanted, atol=1e-11), (step, slot)
            count = rng.randint(1, n) if slot in decode else n
            pending[slot] = count if slot in decode else 0
            matrix[slot] = naive(matrix[slot], take(own, slice(count)))[1]
            length[slot] += count
            row += n


@pytest.mark.parametrize("first", [64, 128])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 130])
def test_chunks_are_anchored(first: int, n: int) -> None:
    """A prompt cut at a multiple of 64 positions gives the very bits of the whole one (design: promise 3)."""
    rows = inputs(first + n, first + n, torch.float32)
    whole, parts = state(1, torch.float32), state(1, torch.float32)
    out = gated_delta_rule(whole, batch([first + n]), *rows)
    head = gated_delta_rule(parts, batch([first]), *take(rows, slice(first)))
    tail = gated_delta_rule(parts, batch([n], [first]), *take(rows, slice(first, None)))
    assert torch.equal(torch.cat([head, tail]), out)
    assert torch.equal(whole.matrix[1], parts.matrix[1])


def test_hard_decay_stays_finite() -> None:
    """exp(c_i - c_j) of a chunk that forgets everything must not overflow above the diagonal."""
    query, key, value, decay, beta = inputs(64, 5, torch.float32)
    decay = decay - 40
    out = gated_delta_rule(state(1, torch.float32), batch([64]), query, key, value, decay, beta)
    wanted, _ = naive(ZERO, tuple(x.double() for x in (query, key, value, decay, beta)))  # type: ignore[arg-type]
    assert torch.allclose(out.double(), wanted, atol=1e-5)

"""Routing and the mixture against one row and one expert at a time: no id and no row count is special."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nextfit.checkpoint.packed import Packed, Stack, Weight, decode
from nextfit.ops import experts
from tests.ops.common import ROWS, SPACE, generator
from tests.support.packing import random_blocks

HIDDEN, WIDTH = 6, 4


def naive(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    x, weights, gate_up, down = x.double(), weights.double(), gate_up.double(), down.double()
    for row in range(len(x)):
        for e, w in zip(ids[row].tolist(), weights[row], strict=True):
            gate, up = (gate_up[e] @ x[row]).chunk(2)
            out[row] += w * (down[e] @ (gate * torch.sigmoid(gate) * up))
    return out


def mixture(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Weight, down: Weight, decode: bool = False
) -> Tensor:
    return experts.mixture(x, ids, weights, gate_up, down, decode, SPACE)


@pytest.mark.parametrize("count", [255, 256, 257, 300, 512, 513])
@pytest.mark.parametrize("decode", [False, True])
def test_mixture_at_every_expert_count(count: int, decode: bool) -> None:
    """66 rows on the upper half of the experts; the ones that nobody chose are poison."""
    g, k, rows = generator(count), 4, 66
    allowed = torch.arange(count // 2, count)
    picks = torch.stack([allowed[torch.randperm(len(allowed), generator=g)[:k]] for _ in range(rows)])
    picks[:, 0] = torch.where((picks == count - 1).any(1), picks[:, 0], count - 1)
    picks = picks.sort(1).values
    gate_up = torch.randn(count, 2 * WIDTH, HIDDEN, generator=g, dtype=torch.float64)
    down = torch.randn(count, HIDDEN, WIDTH, generator=g, dtype=torch.float64)
    unused = torch.ones(count, dtype=torch.bool)
    unused[picks.flatten()] = False
    gate_up[unused], down[unused] = torch.nan, torch.nan
    x = torch.randn(rows, HIDDEN, generator=g, dtype=torch.float64)
    weights = torch.rand(rows, k, generator=g, dtype=torch.float64)
    got = mixture(x, picks, weights, gate_up, down, decode)
    assert torch.allclose(got, naive(x, picks, weights, gate_up, down), atol=1e-12)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("decode", [False, True])
def test_mixture_at_every_row_count(rows: int, decode: bool) -> None:
    g, count, k = generator(rows), 16, 3
    ids = torch.stack([torch.randperm(count, generator=g)[:k] for _ in range(rows)]).sort(1).values
    gate_up, down = torch.randn(count, 8, HIDDEN, generator=g), torch.randn(count, HIDDEN, 4, generator=g)
    x, weights = torch.randn(rows, HIDDEN, generator=g), torch.rand(rows, k, generator=g)
    got = mixture(x, ids, weights, gate_up, down, decode)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), naive(x, ids, weights, gate_up, down), atol=1e-4)


@pytest.mark.parametrize("format", ["q8_0", "q4_k", "iq4_nl", "mxfp4"])
@pytest.mark.parametrize("decode_rows", [0, 9])
def test_a6_quantised_experts_above_255(format: str, decode_rows: int) -> None:
    """Experts 0, 255, 256, 257 ... of a file's own blocks, gate and up in one weight or in two."""
    chosen = torch.tensor([[0, 255, 256, 257, 300, 338, 400, 500, 510, 511]])
    count, hidden, width, rows = 512, 256, 256 if format == "q4_k" else 32, 9
    part = random_blocks(format, (len(chosen[0]), 3 * width, hidden), seed=1)
    if format == "mxfp4":
        exponents = part.parts["data"].view(-1, 17)[:, 0]
        exponents %= 8
        exponents += 120
    values = decode(part, torch.float32)
    assert float(values.abs().amax(-1).median()) > 0
    part.parts["data"][values.abs().amax(-1) > 1e3] = 0
    empty = Packed(
        format,
        (count, 3 * width, hidden),
        {"data": torch.full((count, *part.parts["data"].shape[1:]), 255, dtype=torch.uint8)},
    )
    empty.parts["data"][chosen[0]] = part.parts["data"]

    def rows_of(a: int, b: int) -> Packed:
        return Packed(format, (count, b - a, hidden), {"data": empty.parts["data"][:, a:b]})

    g = generator(2)
    down = torch.randn(count, hidden, width, generator=g)
    x = torch.randn(rows, hidden, generator=g) / 50
    weights = torch.rand(rows, 10, generator=g)
    ids = chosen.expand(rows, -1)
    whole = decode(rows_of(0, 2 * width), torch.float32)
    wanted = naive(x, ids, weights, whole, down)
    scale = float(wanted.abs().max())
    for weight in (rows_of(0, 2 * width), Stack((rows_of(0, width), rows_of(width, 2 * width)))):
        got = mixture(x, ids, weights, weight, down, decode_rows > 0)
        assert float((got.double() - wanted).abs().max()) < 1e-5 * max(1.0, scale)


def test_a6_expert_of_tiny_scale_is_nearly_nothing() -> None:
    g = generator(0)
    gate_up, down = torch.randn(4, 8, HIDDEN, generator=g), torch.randn(4, HIDDEN, 4, generator=g)
    gate_up[2], down[2] = gate_up[2] * 1e-23, down[2] * 1e-23
    x = torch.randn(3, HIDDEN, generator=g)
    got = mixture(x, torch.tensor([[2]] * 3), torch.ones(3, 1), gate_up, down)
    assert not got.isnan().any() and float(got.abs().max()) < 1e-20


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("normalise", [False, True])
def test_route(rows: int, normalise: bool) -> None:
    g = generator(rows)
    logits = torch.randint(-3, 4, (rows, 20), generator=g, dtype=torch.float64)  # equal ones everywhere
    ids, weights = experts.route(logits, 5, normalise)
    for row in range(rows):
        p = (logits[row] - logits[row].max()).exp()
        p = p / p.sum()
        best = sorted(sorted(range(20), key=lambda e: (-float(p[e]), e))[:5])
        assert ids[row].tolist() == best
        wanted = p[best] / p[best].sum() if normalise else p[best]
        assert torch.allclose(weights[row], wanted, atol=1e-15)


def test_route_rounds_weights_to_the_activation_type() -> None:
    _, weights = experts.route(torch.randn(4, 9).bfloat16(), 3, True)
    assert weights.dtype == torch.bfloat16

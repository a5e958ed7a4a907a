from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Stack, Weight, expert
from nextfit.ops.linear import linear
from nextfit.ops.precision import matmul_dtype, wide
from nextfit.ops.select import top_k_ascending


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of one layer's experts."""

    gate_up: Weight  # [experts, 2 * width, hidden]
    down: Weight  # [experts, hidden, width]
    shared_down: Weight  # [hidden, shared width]
    top_k: int
    normalise: bool  # the chosen weights sum to 1

    @property
    def count(self) -> int:
        first = self.gate_up.parts[0] if isinstance(self.gate_up, Stack) else self.gate_up
        return first.shape[0]


def layer(x: Tensor, projected: Tensor, w: Experts, decode: bool, space: Tensor, out: Tensor) -> None:
    """`experts.layer` of rows of one class."""
    shared_width = (projected.shape[1] - w.count - 1) // 2
    router, gate, shared = projected.split([w.count, 1, 2 * shared_width], dim=1)
    ids, weights = route(router, w.top_k, w.normalise)
    y = mixture(x, ids, weights, w.gate_up, w.down, decode, space)
    s = linear(gated_mlp(shared), w.shared_down, len(x) if decode else 0, space)
    torch.add(y.to(x.dtype), s.mul_(torch.sigmoid(gate)), out=out)


def route(logits: Tensor, k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """The k best experts of each row, ascending, and their weights in the type of `logits` [rows, experts].

    Softmax over all experts in the wide type; `normalise` divides the chosen weights by their sum.
    """
    p = logits.softmax(-1, dtype=wide(logits.dtype))
    ids = top_k_ascending(p, k)
    weights = p.gather(1, ids)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights.to(logits.dtype)


def gated_mlp(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [rows, 2 * width], the gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def mixture(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Weight, down: Weight, decode: bool, space: Tensor
) -> Tensor:
    """Weighted sum of the experts of each row of one class, [rows, hidden] in the wide type.

    x [rows, hidden], ids and weights [rows, k], gate_up [experts, 2 * width, hidden], down [experts, hidden, width],
    `space` as for `linear`. Walks over the experts that were chosen, each with all of its rows.
    """
    k, sums = ids.shape[1], wide(x.dtype)
    if not decode:
        x = x.to(matmul_dtype(x.dtype, x.device))  # once, not for every expert that a row meets
    order = ids.flatten().argsort(stable=True)  # pairs of (row, choice) by expert, rows ascending within each
    chosen, counts = ids.flatten()[order].unique_consecutive(return_counts=True)
    outputs = torch.empty(len(order), x.shape[1], dtype=sums, device=x.device)
    start = 0
    for e, rows in zip(chosen.tolist(), (order // k).split(counts.tolist()), strict=True):
        few, end = len(rows) if decode else 0, start + len(rows)
        h = gated_mlp(linear(x.index_select(0, rows), expert(gate_up, e), few, space))
        outputs[start:end] = linear(h, expert(down, e), few, space)
        start = end
    by_row = order.argsort().view(-1, k)
    return F.embedding_bag(by_row, outputs, mode="sum", per_sample_weights=weights.to(sums))

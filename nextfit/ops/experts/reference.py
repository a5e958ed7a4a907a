from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Weight, expert
from nextfit.ops.batch import Batch
from nextfit.ops.linear import linear
from nextfit.ops.precision import wide
from nextfit.ops.select import top_k_ascending


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


def mixture(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Weight, down: Weight, batch: Batch) -> Tensor:
    """Weighted sum of each row's experts, [rows, hidden] in the wide type.

    x [rows, hidden], ids and weights [rows, k], gate_up [experts, 2 * width, hidden], down [experts, hidden, width].
    Walks over the experts that were chosen, each with all of its rows.
    """
    k = ids.shape[1]
    order = ids.flatten().argsort(stable=True)  # pairs of (row, choice) by expert, rows ascending within each
    rows = order // k
    chosen, counts = ids.flatten()[order].unique_consecutive(return_counts=True)
    few = torch.zeros_like(counts).index_add_(0, _expert_of(counts), (rows < batch.decode_rows).long())
    outputs = torch.empty(len(rows), x.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for e, n, small in zip(chosen.tolist(), counts.tolist(), few.tolist(), strict=True):
        span = slice(start, start + n)
        h = gated_mlp(linear(x[rows[span]], expert(gate_up, e), small))
        outputs[span] = linear(h, expert(down, e), small)
        start += n
    by_row = outputs[order.argsort()].unflatten(0, (-1, k))
    return (by_row * weights[..., None]).to(wide(x.dtype)).sum(1)


def _expert_of(counts: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)

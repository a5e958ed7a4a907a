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
    """Weighted sum of each row's experts, [rows, hidden] in the wide type, added in ascending expert order.

    x [rows, hidden], ids and weights [rows, k], gate_up [experts, 2 * width, hidden], down [experts, hidden, width].
    Walks over the experts that were chosen, each with all of its rows.
    """
    k = ids.shape[1]
    order = ids.flatten().argsort(stable=True)
    rows, scale = order // k, weights.flatten()[order, None]
    chosen, counts = ids.flatten()[order].unique_consecutive(return_counts=True)
    decode = (rows < batch.decode_rows).split(counts.tolist())
    out = torch.zeros(x.shape, dtype=wide(x.dtype), device=x.device)
    start = 0
    for e, n, small in zip(chosen.tolist(), counts.tolist(), decode, strict=True):
        part = rows[start : start + n]
        few = n if batch.decode_rows == len(x) else int(small.sum())  # rows stay ascending within an expert
        h = gated_mlp(linear(x[part], expert(gate_up, e), few))
        y = linear(h, expert(down, e), few) * scale[start : start + n]
        out.index_add_(0, part, y.to(out.dtype))
        start += n
    return out

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Packed, Stack, Weight, decode, rows
from nextfit.ops.classes import by_class
from nextfit.ops.precision import matmul_dtype

TILE = 1 << 22  # elements of a weight that are decoded or widened at a time; bounds memory for any weight

_local = threading.local()


def linear(x: Tensor, weight: Weight, decode_rows: int) -> Tensor:
    """x [rows, columns] times the transpose of `weight` [out, columns] -> [rows, out], dtype of x."""
    if isinstance(weight, Stack):
        return torch.cat([linear(x, part, decode_rows) for part in weight.parts], dim=-1)
    return by_class(lambda decode, part: _product(part, weight, decode), decode_rows, x)


def _product(x: Tensor, weight: Tensor | Packed, decode: bool) -> Tensor:
    dtype = x.dtype if decode else matmul_dtype(x.dtype, x.device)
    if isinstance(weight, Tensor) and weight.dtype == dtype:
        return F.linear(x.to(dtype), weight).to(x.dtype)
    wide, n, columns = x.to(dtype), weight.shape[0], weight.shape[1]
    step = max(1, TILE // columns)
    if n <= step:
        return F.linear(wide, _values(weight, dtype)).to(x.dtype)
    out = x.new_empty(len(x), n)
    for a in range(0, n, step):
        out[:, a : a + step] = F.linear(wide, _values(rows(weight, a, min(n, a + step)), dtype))
    return out


def _values(weight: Tensor | Packed, dtype: torch.dtype) -> Tensor:
    """`weight` in `dtype`, valid until the next call of this thread where it is a widened tensor.

    Widening into fresh memory costs three times the product of a small weight, so one buffer is used again.
    """
    if isinstance(weight, Packed):
        return decode(weight, dtype)
    buffers = _local.__dict__.setdefault("buffers", {})
    buffer = buffers.get((dtype, weight.device))
    if buffer is None or len(buffer) < weight.numel():
        buffer = torch.empty(max(TILE, weight.numel()), dtype=dtype, device=weight.device)
        buffers[dtype, weight.device] = buffer
    return buffer[: weight.numel()].view(weight.shape).copy_(weight)

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Packed, Stack, Weight, rows
from nextfit.checkpoint.packed import decode as decoded
from nextfit.ops.classes import classes
from nextfit.ops.precision import matmul_dtype

TILE = 1 << 22  # elements of a weight that are decoded or widened at a time; bounds memory for any weight


def linear(x: Tensor, weight: Weight, decode_rows: int, space: Tensor, out: Tensor | None = None) -> Tensor:
    """x [rows, columns] times the transpose of `weight` [out, columns] -> [rows, out], dtype of x.

    `space` [bytes] uint8 takes a tile of the weight while it is widened: the smaller of TILE and its elements, in
    the type of the product. The result is written to `out` where one is given.
    """
    n = x.shape[0]
    if isinstance(weight, Stack):
        sizes = [p.shape[0] for p in weight.parts]
        out = x.new_empty(n, sum(sizes)) if out is None else out
        for part, y in zip(weight.parts, out.split(sizes, dim=1), strict=True):
            linear(x, part, decode_rows, space, y)
        return out
    out = x.new_empty(n, weight.shape[0]) if out is None else out
    for decode, some in classes(decode_rows, n):
        dtype = x.dtype if decode else matmul_dtype(x.dtype, x.device)
        _product(x[some], weight, dtype, space, out[some])
    return out


def _product(x: Tensor, weight: Tensor | Packed, dtype: torch.dtype, space: Tensor, out: Tensor) -> None:
    """Computed in `dtype`; a weight that is not of it is decoded or widened tile by tile."""
    n, columns = weight.shape
    step = n if isinstance(weight, Tensor) and weight.dtype == dtype else max(1, TILE // columns)
    if step >= n:
        _store(x.to(dtype), _values(weight, dtype, space), out)
        return
    x = x.to(dtype)
    for a in range(0, n, step):
        tile = rows(weight, a, min(n, a + step))
        _store(x, _values(tile, dtype, space), out[:, a : a + step])


def _store(x: Tensor, weight: Tensor, out: Tensor) -> None:
    if out.dtype == weight.dtype:
        torch.mm(x, weight.T, out=out)
    else:
        out.copy_(F.linear(x, weight))


def _values(weight: Tensor | Packed, dtype: torch.dtype, space: Tensor) -> Tensor:
    """`weight` in `dtype`, in `space` where it is a tensor of another type.

    Widening into fresh memory costs three times the product of a small weight.
    """
    if isinstance(weight, Packed):
        return decoded(weight, dtype)
    if weight.dtype == dtype:
        return weight
    return space[: weight.numel() * dtype.itemsize].view(dtype).view(weight.shape).copy_(weight)

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Packed, rows
from nextfit.checkpoint.packed import decode as decoded
from nextfit.ops.precision import matmul_dtype

TILE = 1 << 22  # elements of a weight that are decoded or widened at a time; bounds memory for any weight


def product(x: Tensor, weight: Tensor | Packed, decode: bool, space: Tensor, out: Tensor) -> None:
    """x [rows, columns] of one class times the transpose of `weight` [out, columns], into `out` [rows, out].

    A weight that is not of the product's type is decoded or widened tile by tile.
    """
    dtype = x.dtype if decode else matmul_dtype(x.dtype, x.device)
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

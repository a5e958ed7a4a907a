from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Packed, Stack, Weight, decode
from nextfit.ops.precision import matmul_dtype


def linear(x: Tensor, weight: Weight, decode_rows: int) -> Tensor:
    """x [rows, columns] times the transpose of `weight` [out, columns] -> [rows, out], dtype of x."""
    if isinstance(weight, Stack):
        return torch.cat([linear(x, part, decode_rows) for part in weight.parts], dim=-1)
    if decode_rows == 0 or decode_rows == len(x):
        return _product(x, weight, prefill=decode_rows == 0)
    head = _product(x[:decode_rows], weight, prefill=False)
    return torch.cat([head, _product(x[decode_rows:], weight, prefill=True)])


def _product(x: Tensor, weight: Tensor | Packed, prefill: bool) -> Tensor:
    dtype = matmul_dtype(x.dtype, x.device) if prefill else x.dtype
    return F.linear(x.to(dtype), decode(weight, dtype)).to(x.dtype)

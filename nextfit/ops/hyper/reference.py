from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Weight
from nextfit.ops.linear import linear
from nextfit.ops.norm import rms_norm
from nextfit.ops.precision import matmul_dtype


def read(
    x: Tensor,
    gain: Tensor,
    down: Weight,
    up: Weight,
    rank: int,
    count: int,
    eps: float,
    decode: bool,
    space: Tensor,
    out: Tensor,
) -> Tensor:
    """`hyper.read` of rows of one class."""
    dtype = x.dtype
    if not decode:
        x = x.to(matmul_dtype(dtype, x.device))  # once, not for every product
    few = len(x) if decode else 0
    n = rms_norm(x, gain, eps, groups=count)
    low = linear(n, down, few, space) / count
    gate = linear(F.silu(low[:, :rank]), up, few, space).sigmoid_()
    out.copy_(gate.mul_(n).unflatten(-1, (count, -1)).mean(1))
    return low[:, rank:].sigmoid().mul_(2).to(dtype)


def write(x: Tensor, y: Tensor, inject: Tensor) -> None:
    """x_s += inject_s * y for every stream s: x [rows, count * hidden], y [rows, hidden], inject [rows, count]."""
    x.unflatten(-1, (inject.shape[1], -1)).addcmul_(inject[:, :, None], y[:, None, :])

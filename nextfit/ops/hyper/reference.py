from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Weight
from nextfit.ops.classes import classes
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
    decode_rows: int,
    space: Tensor,
    out: Tensor,
) -> Tensor:
    """Mix the streams x [rows, count * hidden] into a block input.

    `down` [rank (+ count), count * hidden] holds the low-rank projection and, for a read that is written
    back, the inject rows. Writes the block input to `out` [rows, hidden] and returns the inject factors
    [rows, count] in (0, 2) ([rows, 0] where `down` has no inject rows). `space` as for `linear`.
    """
    lows = []
    for decode, part in classes(decode_rows, len(x)):
        rows = x[part]
        if not decode:
            rows = rows.to(matmul_dtype(rows.dtype, rows.device))  # once, not for every product
        few = len(rows) if decode else 0
        n = rms_norm(rows, gain, eps, groups=count)
        low = linear(n, down, few, space) / count
        gate = linear(F.silu(low[:, :rank]), up, few, space).sigmoid_()
        out[part] = gate.mul_(n).unflatten(-1, (count, -1)).mean(1)
        lows.append(low[:, rank:])
    return torch.cat(lows).sigmoid_().mul_(2).to(x.dtype)


def write(x: Tensor, y: Tensor, inject: Tensor) -> None:
    """x_s += inject_s * y for every stream s: x [rows, count * hidden], y [rows, hidden], inject [rows, count]."""
    x.unflatten(-1, (inject.shape[1], -1)).addcmul_(inject[:, :, None], y[:, None, :])

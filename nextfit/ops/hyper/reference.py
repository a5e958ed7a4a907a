from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Weight
from nextfit.ops.classes import by_class
from nextfit.ops.linear import linear
from nextfit.ops.norm import rms_norm
from nextfit.ops.precision import matmul_dtype


def read(
    x: Tensor, gain: Tensor, down: Weight, up: Weight, rank: int, count: int, eps: float, decode_rows: int
) -> tuple[Tensor, Tensor]:
    """Mix the streams x [rows, count * hidden] into a block input.

    `down` [rank (+ count), count * hidden] holds the low-rank projection and, for a read that is written
    back, the inject rows. Returns u [rows, hidden] and the inject factors [rows, count] in (0, 2)
    ([rows, 0] where `down` has no inject rows).
    """

    def of_class(decode: bool, rows: Tensor) -> Tensor:
        if not decode:
            rows = rows.to(matmul_dtype(rows.dtype, rows.device))  # once, not for every product
        class_rows = len(rows) if decode else 0
        n = rms_norm(rows, gain, eps, groups=count)
        low = linear(n, down, class_rows) / count
        gate = linear(F.silu(low[:, :rank]), up, class_rows).sigmoid_()
        u = gate.mul_(n).unflatten(-1, (count, -1)).mean(1)
        return torch.cat([u, 2 * torch.sigmoid(low[:, rank:])], dim=1).to(x.dtype)

    u, inject = by_class(of_class, decode_rows, x).tensor_split([x.shape[1] // count], dim=1)
    return u, inject


def write(x: Tensor, y: Tensor, inject: Tensor) -> Tensor:
    """x_s + inject_s * y for every stream s: x [rows, count * hidden], y [rows, hidden], inject [rows, count]."""
    streams = x.unflatten(-1, (inject.shape[1], -1))
    return torch.addcmul(streams, inject[:, :, None], y[:, None, :]).flatten(1)

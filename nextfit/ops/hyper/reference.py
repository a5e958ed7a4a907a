from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.packed import Weight
from nextfit.ops.linear import linear
from nextfit.ops.norm import rms_norm


def read(
    x: Tensor, gain: Tensor, down: Weight, up: Weight, rank: int, count: int, eps: float, decode_rows: int
) -> tuple[Tensor, Tensor]:
    """Mix the streams x [rows, count * hidden] into a block input.

    `down` [rank (+ count), count * hidden] holds the low-rank projection and, for a read that is written
    back, the inject rows. Returns u [rows, hidden] and the inject factors [rows, count] in (0, 2)
    ([rows, 0] where `down` has no inject rows).
    """
    n = rms_norm(x, gain, eps, groups=count)
    low = linear(n, down, decode_rows) / count
    gate = torch.sigmoid(linear(F.silu(low[:, :rank]), up, decode_rows))
    u = (gate * n).unflatten(-1, (count, -1)).mean(1)
    return u, 2 * torch.sigmoid(low[:, rank:])


def write(x: Tensor, y: Tensor, inject: Tensor) -> Tensor:
    """x_s + inject_s * y for every stream s: x [rows, count * hidden], y [rows, hidden], inject [rows, count]."""
    return x + (inject[:, :, None] * y[:, None, :]).flatten(1)

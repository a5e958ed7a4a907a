from __future__ import annotations

import torch
from torch import Tensor

from nextfit.ops.compiled import kernels


def read(
    x: Tensor,
    gain: Tensor,
    down: Tensor,
    up: Tensor,
    rank: int,
    count: int,
    eps: float,
    decode: bool,
    space: Tensor,
    out: Tensor,
) -> Tensor:
    """`hyper.read` of a few rows. `gain` is float32."""
    rows, width = x.shape
    injects = len(down) - rank
    scratch = x.new_empty(rows, width + rank)
    inject = torch.empty(rows, injects, dtype=x.dtype)
    kernels.hyper_read(
        *(x.data_ptr(), x.stride(0), rows, width // count, count),
        *(gain.data_ptr(), down.data_ptr(), up.data_ptr(), rank, injects, eps),
        *(scratch.data_ptr(), out.data_ptr(), out.stride(0), inject.data_ptr()),
    )
    return inject

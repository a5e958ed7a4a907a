from __future__ import annotations

import torch
from torch import Tensor

from nextfit.ops.compiled import kernels
from nextfit.ops.experts.reference import Experts


def layer(x: Tensor, projected: Tensor, w: Experts, decode: bool, space: Tensor, out: Tensor) -> None:
    """`experts.layer` of a few rows."""
    assert isinstance(w.gate_up, Tensor) and isinstance(w.down, Tensor) and isinstance(w.shared_down, Tensor)
    (rows, hidden), (count, double, _), k = x.shape, w.gate_up.shape, w.top_k
    width, shared = double // 2, w.shared_down.shape[1]
    inner = x.new_empty(rows * (k * width + shared))
    numbers = torch.empty(rows * k + 2 * count)
    ids = torch.empty(2, rows, k, dtype=torch.int64)
    kernels.experts(
        *(rows, hidden, count, k, width, shared),
        *(x.data_ptr(), x.stride(0), projected.data_ptr(), projected.stride(0), w.normalise),
        *(w.gate_up.data_ptr(), w.down.data_ptr(), w.shared_down.data_ptr()),
        *(inner.data_ptr(), numbers.data_ptr(), ids.data_ptr(), out.data_ptr(), out.stride(0)),
    )

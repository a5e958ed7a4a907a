from __future__ import annotations

import torch
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.compiled import kernels
from nextfit.ops.delta_net.mixer import Mixer
from nextfit.ops.delta_net.reference import DeltaState
from nextfit.ops.history import History


def mix(projected: Tensor, w: Mixer, conv: History, delta: DeltaState, batch: Batch, out: Tensor) -> None:
    """`delta_net.mix` of decode and verify rows."""
    channels, taps = w.taps.shape
    mixed = torch.empty(len(projected), channels)
    scratch = torch.empty(torch.get_num_threads(), w.key_dim * (w.value_dim + 1) + 2 * w.value_dim)
    kernels.delta_net(
        *(w.keys, w.heads, w.key_dim, w.value_dim, taps, conv.log.shape[1]),
        *(w.taps.data_ptr(), w.decay.data_ptr(), w.dt_bias.data_ptr(), w.norm.data_ptr()),
        *(w.key_of_value.data_ptr(), w.activation == "silu", w.eps),
        *(conv.tail.data_ptr(), conv.log.data_ptr(), delta.matrix.data_ptr()),
        *(delta.key.data_ptr(), delta.value.data_ptr(), delta.decay.data_ptr(), delta.beta.data_ptr()),
        *(batch.table.data_ptr(), len(batch.lengths), projected.data_ptr(), projected.stride(0)),
        *(mixed.data_ptr(), scratch.data_ptr(), out.data_ptr()),
    )

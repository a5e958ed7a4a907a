from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.delta_net.reference import DeltaState, gated_delta_rule
from nextfit.ops.history import History, causal_conv, extend
from nextfit.ops.norm import gated_rms_norm, l2_norm
from nextfit.ops.precision import wide


@dataclass(frozen=True, slots=True)
class Mixer:
    """What a layer has besides its projections, float32."""

    taps: Tensor  # [2 * key heads * key dim + value heads * value dim, K], the last one for the current row
    decay: Tensor  # [value heads], -exp(A_log)
    dt_bias: Tensor  # [value heads]
    norm: Tensor  # [value dim]
    key_of_value: Tensor  # [value heads] int64: the key head that each reads
    keys: int  # key heads
    key_dim: int
    value_dim: int
    activation: str  # of the output gate, "sigmoid" or "silu"
    eps: float

    @property
    def heads(self) -> int:
        return len(self.decay)

    @property
    def sizes(self) -> list[int]:
        """Parts of a projected row: convolution inputs, output gate, logits of beta and of the decay."""
        return [len(self.taps), self.heads * self.value_dim, self.heads, self.heads]


def mix(projected: Tensor, w: Mixer, conv: History, delta: DeltaState, batch: Batch, out: Tensor) -> None:
    """`delta_net.mix` of rows of one class."""
    qk = w.keys * w.key_dim
    qkv, z, b, a = projected.split(w.sizes, dim=1)
    mixed = F.silu(causal_conv(extend(conv, batch, qkv), w.taps))
    q, k, v = mixed.split([qk, qk, w.heads * w.value_dim], dim=1)
    q = l2_norm(q.unflatten(1, (w.keys, -1)), w.eps) * w.key_dim**-0.5
    k = l2_norm(k.unflatten(1, (w.keys, -1)), w.eps)
    exact = wide(projected.dtype)
    g = w.decay.to(exact) * F.softplus(a.to(exact) + w.dt_bias.to(exact))
    value = v.unflatten(1, (-1, w.value_dim)).to(exact)
    beta = torch.sigmoid(b).to(exact)
    o = gated_delta_rule(delta, batch, q[:, w.key_of_value], k[:, w.key_of_value], value, g, beta)
    z = z.unflatten(1, (-1, w.value_dim))
    out.copy_(gated_rms_norm(o.to(projected.dtype), z, w.norm, w.eps, w.activation).flatten(1))

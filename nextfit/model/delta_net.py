"""The gated delta net (spec section 5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.buffers import Buffers
from nextfit.model.state import LinearState
from nextfit.model.weights import Weights
from nextfit.ops.batch import Batch
from nextfit.ops.delta_net import gated_delta_rule
from nextfit.ops.history import causal_conv, extend
from nextfit.ops.linear import linear
from nextfit.ops.norm import gated_rms_norm, l2_norm
from nextfit.ops.precision import wide


class DeltaNet:
    """The token mixer of the linear layers."""

    def __init__(self, c: ModelConfig, w: Weights) -> None:
        self.in_proj, self.out_proj = w.matrix("in_proj"), w.matrix("out_proj")
        self.taps, self.decay, self.dt_bias = w.vector("conv"), w.vector("decay"), w.vector("dt_bias")
        self.norm, self.activation, self.eps = w.vector("norm"), c.output_gate_type, c.rms_norm_eps
        nk, nv = c.linear_num_key_heads, c.linear_num_value_heads
        self.keys, self.key_dim, self.value_dim = nk, c.linear_key_head_dim, c.linear_value_head_dim
        heads = torch.arange(nv, device=self.norm.device)
        self.key_of_value = heads % nk if c.value_heads_tiled else heads // (nv // nk)
        qk, v = nk * self.key_dim, nv * self.value_dim
        self.sizes = [2 * qk + v, v, nv, nv]
        self.qkv_sizes = [qk, qk, v]

    def __call__(self, u: Tensor, state: LinearState, batch: Batch, buffers: Buffers) -> Tensor:
        """Block input u [rows, hidden] -> output [rows, hidden]."""
        n, space = batch.decode_rows, buffers.space
        qkv, z, b, a = linear(u, self.in_proj, n, space).split(self.sizes, dim=1)
        mixed = F.silu(causal_conv(extend(state.conv, batch, qkv), self.taps))
        q, k, v = mixed.split(self.qkv_sizes, dim=1)
        q = l2_norm(q.unflatten(1, (self.keys, -1)), self.eps) * self.key_dim**-0.5
        k = l2_norm(k.unflatten(1, (self.keys, -1)), self.eps)
        w = wide(u.dtype)
        g = self.decay.to(w) * F.softplus(a.to(w) + self.dt_bias.to(w))
        value = v.unflatten(1, (-1, self.value_dim)).to(w)
        beta = torch.sigmoid(b).to(w)
        o = gated_delta_rule(
            state.delta, batch, q[:, self.key_of_value], k[:, self.key_of_value], value, g, beta
        )
        z = z.unflatten(1, (-1, self.value_dim))
        y = gated_rms_norm(o.to(u.dtype), z, self.norm, self.eps, self.activation)
        return linear(y.flatten(1), self.out_proj, n, space, buffers.outputs)

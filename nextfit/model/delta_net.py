"""The gated delta net (spec section 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.buffers import Buffers
from nextfit.model.state import LinearState
from nextfit.model.weights import Weights
from nextfit.ops import delta_net
from nextfit.ops.batch import Batch
from nextfit.ops.linear import linear


class DeltaNet:
    """The token mixer of the linear layers."""

    def __init__(self, c: ModelConfig, w: Weights) -> None:
        self.in_proj, self.out_proj = w.matrix("in_proj"), w.matrix("out_proj")
        nk, nv, norm = c.linear_num_key_heads, c.linear_num_value_heads, w.vector("norm")
        heads = torch.arange(nv, device=norm.device)
        self.mixer = delta_net.Mixer(
            w.vector("conv"),
            w.vector("decay"),
            w.vector("dt_bias"),
            norm,
            heads % nk if c.value_heads_tiled else heads // (nv // nk),
            nk,
            c.linear_key_head_dim,
            c.linear_value_head_dim,
            c.output_gate_type,
            c.rms_norm_eps,
        )

    def __call__(self, u: Tensor, state: LinearState, batch: Batch, buffers: Buffers) -> Tensor:
        """Block input u [rows, hidden] -> output [rows, hidden]."""
        n, space = batch.decode_rows, buffers.space
        projected = linear(u, self.in_proj, n, space)
        y = delta_net.mix(projected, self.mixer, state.conv, state.delta, batch)
        return linear(y, self.out_proj, n, space, buffers.outputs)

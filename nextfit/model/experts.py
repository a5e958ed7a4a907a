"""Mixture of experts (spec section 6)."""

from __future__ import annotations

from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.buffers import Buffers
from nextfit.model.weights import Weights
from nextfit.ops import experts
from nextfit.ops.batch import Batch
from nextfit.ops.linear import linear


class Experts:
    """The experts of one layer, and the shared expert with its gate."""

    def __init__(self, c: ModelConfig, w: Weights) -> None:
        self.in_proj = w.matrix("in_proj")
        self.weights = experts.Experts(
            w.matrix("experts.gate_up"),
            w.matrix("experts.down"),
            w.matrix("shared_down"),
            c.num_experts_per_tok,
            c.norm_topk_prob,
        )

    def __call__(self, u: Tensor, batch: Batch, buffers: Buffers) -> Tensor:
        """Block input u [rows, hidden] -> output [rows, hidden]."""
        n, space = batch.decode_rows, buffers.space
        projected = linear(u, self.in_proj, n, space)
        return experts.layer(u, projected, self.weights, n, space, buffers.outputs)

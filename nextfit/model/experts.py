"""Mixture of experts (spec section 6)."""

from __future__ import annotations

import torch
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
        self.in_proj, self.shared_down = w.matrix("in_proj"), w.matrix("shared_down")
        self.gate_up, self.down = w.matrix("experts.gate_up"), w.matrix("experts.down")
        self.top_k, self.normalise = c.num_experts_per_tok, c.norm_topk_prob
        self.sizes = [c.num_experts, 1, 2 * c.shared_expert_intermediate_size]

    def __call__(self, u: Tensor, batch: Batch, buffers: Buffers) -> Tensor:
        """Block input u [rows, hidden] -> output [rows, hidden]."""
        n, space = batch.decode_rows, buffers.space
        router, gate, shared = linear(u, self.in_proj, n, space).split(self.sizes, dim=1)
        ids, weights = experts.route(router, self.top_k, self.normalise)
        y = experts.mixture(u, ids, weights, self.gate_up, self.down, batch, space)
        s = linear(experts.gated_mlp(shared), self.shared_down, n, space)
        return torch.add(y.to(u.dtype), s.mul_(torch.sigmoid(gate)), out=buffers.outputs)

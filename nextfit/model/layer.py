"""One decoder layer; the trunk and the draft head are made of the same ones."""

from __future__ import annotations

from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.attention import Angles, SparseAttention
from nextfit.model.delta_net import DeltaNet
from nextfit.model.experts import Experts
from nextfit.model.hyper import HyperConnection
from nextfit.model.state import LinearState
from nextfit.model.weights import Weights
from nextfit.ops import hyper
from nextfit.ops.batch import Batch
from nextfit.ops.sparse_attention import KVPages


class Layer:
    """read, token mixer, write, read, experts, write (spec section 2)."""

    def __init__(self, c: ModelConfig, w: Weights, linear: bool) -> None:
        self.attn_hyper = HyperConnection(c, w.below("attn_hyper."))
        self.mlp_hyper = HyperConnection(c, w.below("mlp_hyper."))
        self.mixer: DeltaNet | SparseAttention = (
            DeltaNet(c, w.below("linear_attn.")) if linear else SparseAttention(c, w.below("self_attn."))
        )
        self.experts = Experts(c, w.below("mlp."))

    def __call__(self, x: Tensor, state: KVPages | LinearState, batch: Batch, angles: Angles) -> Tensor:
        """Streams x [rows, streams * hidden] -> the streams after this layer."""
        u, inject = self.attn_hyper.read(x, batch.decode_rows)
        if isinstance(self.mixer, DeltaNet):
            assert isinstance(state, LinearState)
            y = self.mixer(u, state, batch)
        else:
            assert isinstance(state, KVPages)
            y = self.mixer(u, state, batch, angles)
        x = hyper.write(x, y, inject)
        u, inject = self.mlp_hyper.read(x, batch.decode_rows)
        return hyper.write(x, self.experts(u, batch), inject)

"""One decoder layer; the trunk and the draft head are made of the same ones."""

from __future__ import annotations

from nextfit.config import ModelConfig
from nextfit.model.attention import Angles, SparseAttention
from nextfit.model.buffers import Buffers
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

    def __call__(self, buffers: Buffers, state: KVPages | LinearState, batch: Batch, angles: Angles) -> None:
        """Advance the streams of the batch's rows by this layer."""
        x = buffers.streams
        u, inject = self.attn_hyper.read(x, batch.decode_rows, buffers)
        if isinstance(self.mixer, DeltaNet):
            assert isinstance(state, LinearState)
            y = self.mixer(u, state, batch, buffers)
        else:
            assert isinstance(state, KVPages)
            y = self.mixer(u, state, batch, angles, buffers)
        hyper.write(x, y, inject)
        u, inject = self.mlp_hyper.read(x, batch.decode_rows, buffers)
        hyper.write(x, self.experts(u, batch, buffers), inject)

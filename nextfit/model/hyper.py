"""Hyper-connections around every block (spec section 2)."""

from __future__ import annotations

from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.buffers import Buffers
from nextfit.model.weights import Weights
from nextfit.ops import hyper


class HyperConnection:
    """One read of the residual streams; `ops.hyper.write` is its counterpart."""

    def __init__(self, c: ModelConfig, w: Weights) -> None:
        self.gain, self.down, self.up = w.vector("norm"), w.matrix("down"), w.matrix("up")
        self.rank, self.count, self.eps = c.hc_lowrank, c.hc_count, c.rms_norm_eps

    def read(self, x: Tensor, decode_rows: int, buffers: Buffers) -> tuple[Tensor, Tensor]:
        """x [rows, streams * hidden] -> block input [rows, hidden], inject factors [rows, streams].

        The first `decode_rows` rows are of the decode class.
        """
        u = buffers.inputs[: len(x)]
        inject = hyper.read(
            x, self.gain, self.down, self.up, self.rank, self.count, self.eps, decode_rows, buffers.space, u
        )
        return u, inject

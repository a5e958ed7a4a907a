"""The hashed n-gram embedding layer (spec section 3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nextfit.checkpoint.ngram_hash import ngram_hash
from nextfit.checkpoint.packed import gather_rows
from nextfit.config import ModelConfig
from nextfit.model.buffers import Buffers
from nextfit.model.weights import Weights
from nextfit.ops import ngram
from nextfit.ops.batch import Batch
from nextfit.ops.history import Extended, History, causal_conv, extend
from nextfit.ops.linear import linear
from nextfit.ops.norm import rms_norm


class NgramLayer:
    """The hashed n-gram embedding that one layer adds to the streams (spec section 3)."""

    def __init__(self, c: ModelConfig, w: Weights, layer: int) -> None:
        self.constants, self.eos, self.dilation = ngram_hash(c, layer), c.eos_token_id, c.ngram_size
        self.table, self.key_value = w.matrix("table"), w.matrix("key_value")
        self.norm_key, self.norm_query = w.vector("norm_key"), w.vector("norm_query")
        self.norm_conv, self.taps = w.vector("norm_conv"), w.vector("conv")
        self.streams, self.hidden, self.eps = c.hc_count, c.hidden_size, c.rms_norm_eps

    def __call__(self, buffers: Buffers, tokens: Extended, history: History, batch: Batch) -> None:
        """Add the embedding to the streams at the start of the layer."""
        gated = self._gated(buffers, tokens, batch.decode_rows)
        inputs = extend(history, batch, rms_norm(gated, self.norm_conv, self.eps, self.streams))
        buffers.streams.add_(gated.add_(F.silu(causal_conv(inputs, self.taps, self.dilation))))

    def _gated(self, buffers: Buffers, tokens: Extended, decode_rows: int) -> Tensor:
        x, hidden = buffers.streams, self.hidden
        rows = ngram.row_ids(tokens, self.constants, self.eos)
        e = gather_rows(self.table, rows, x.dtype).flatten(1)
        both = linear(e, self.key_value, decode_rows, buffers.space)
        key, value = both.split([x.shape[1], hidden], dim=1)
        streams = (self.streams, hidden)
        key = rms_norm(key, self.norm_key, self.eps, self.streams).unflatten(1, streams)
        query = rms_norm(x, self.norm_query, self.eps, self.streams).unflatten(1, streams)
        return ngram.gate(key, query, value).flatten(1)

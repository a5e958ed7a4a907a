"""The forward pass over ragged rows: trunk and draft head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nextfit.checkpoint.packed import Weight, gather_rows
from nextfit.config import ModelConfig
from nextfit.model.attention import Angles
from nextfit.model.buffers import Buffers, Take
from nextfit.model.hyper import HyperConnection
from nextfit.model.layer import Layer
from nextfit.model.ngram import NgramLayer
from nextfit.model.state import State, StateShape
from nextfit.model.weights import Weights
from nextfit.ops.batch import Batch
from nextfit.ops.history import extend, remember
from nextfit.ops.linear import linear
from nextfit.ops.norm import rms_norm


class Model:
    """The model on its resident weights, computing in `dtype`.

    `forward` maps a batch to the residual streams after the last layer, `logits` maps streams to logits;
    `draft` is the MTP head, absent where the checkpoint has none.
    """

    def __init__(self, c: ModelConfig, slots: Mapping[str, Any], dtype: torch.dtype) -> None:
        w = Weights(slots)
        self.config, self.dtype, self.weights = c, dtype, slots
        self.embedding = w.matrix("embed_tokens")
        self.head = w.matrix("embed_tokens" if c.tie_word_embeddings else "lm_head")
        below = [w.below(f"layers.{i}.") for i in range(c.num_hidden_layers)]
        self.layers = [
            Layer(c, b, t == "linear_attention") for b, t in zip(below, c.layer_types, strict=True)
        ]
        self.ngram = {i: NgramLayer(c, below[i].below("ple."), i) for i in c.ple_layers}
        self.mixer = HyperConnection(c, w.below("mixer."))
        self.draft = DraftHead(self, w.below("mtp.")) if "mtp.fc_hidden" in w else None

    @property
    def device(self) -> torch.device:
        return self.mixer.gain.device

    def new_state(self, shape: StateShape, take: Take | None = None) -> State:
        """`take` gives the memory; left out, every tensor has its own."""
        return State(self.config, shape, self.dtype, take or self.take)

    def take(self, owner: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros in memory of their own."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def embed(self, tokens: Tensor) -> Tensor:
        """[rows] int64 -> [rows, hidden]."""
        return gather_rows(self.embedding, tokens, self.dtype)

    def forward(self, batch: Batch, state: State, buffers: Buffers) -> Tensor:
        """Run the rows of `batch` and advance `state`; returns the streams [rows, streams * hidden], in `buffers`."""
        buffers = buffers.first(len(batch.tokens))
        x = buffers.streams
        x.unflatten(1, (self.config.hc_count, -1)).copy_(self.embed(batch.tokens)[:, None])
        angles = Angles.of(self.config, batch, self.dtype)
        tokens = extend(state.tokens, batch, batch.tokens[:, None])
        for i, layer in enumerate(self.layers):
            if i in self.ngram:
                self.ngram[i](buffers, tokens, state.ngram[i], batch)
            layer(buffers, state.layers[i], batch, angles)
        remember(state.streams, batch, x)
        return x

    def logits(self, x: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        """Streams [n, streams * hidden] -> logits [n, vocabulary], in `buffers`; `decode_rows` of them come first."""
        return _logits(self.mixer, self.head, x, decode_rows, buffers)


class DraftHead:
    """Multi-token prediction (spec section 7): from row p's streams and token p + 1 to logits for token p + 2."""

    def __init__(self, trunk: Model, w: Weights) -> None:
        c = trunk.config
        self.trunk = trunk
        self.fc_embedding, self.fc_hidden = w.matrix("fc_embedding"), w.matrix("fc_hidden")
        self.norm_embedding, self.norm_hidden = w.vector("norm_embedding"), w.vector("norm_hidden")
        self.layer = Layer(c, w.below("layers.0."), linear=False)
        self.mixer = HyperConnection(c, w.below("mixer."))

    def forward(self, batch: Batch, state: State, buffers: Buffers) -> Tensor:
        """Rows p of which `buffers.handed` has the streams, with `batch.tokens` = token p + 1 at position p.

        Returns the head's own streams [rows, streams * hidden], in `buffers`: input of the next recursion, and
        of `logits`.
        """
        c, n = self.trunk.config, batch.decode_rows
        buffers = buffers.first(len(batch.tokens))
        x, z = buffers.handed[: len(batch.tokens)], buffers.streams
        assert state.draft is not None
        e = rms_norm(self.trunk.embed(batch.tokens), self.norm_embedding, c.rms_norm_eps)
        e = linear(e, self.fc_embedding, n, buffers.space)
        h = rms_norm(x, self.norm_hidden, c.rms_norm_eps)  # one norm over all streams, not one a stream
        h = h.view(-1, c.hidden_size)  # a row's streams stay together, so decode rows still come first
        linear(h, self.fc_hidden, n * c.hc_count, buffers.space, z.view(-1, c.hidden_size))
        z.unflatten(1, (c.hc_count, -1)).add_(e[:, None])
        self.layer(buffers, state.draft, batch, Angles.of(c, batch, self.trunk.dtype))
        return z

    def logits(self, z: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        """Logits for the token after next, [n, vocabulary], from the head's streams [n, streams * hidden]."""
        return _logits(self.mixer, self.trunk.head, z, decode_rows, buffers)


def _logits(mixer: HyperConnection, head: Weight, x: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
    u, _ = mixer.read(x, decode_rows, buffers)
    return linear(u, head, decode_rows, buffers.space, buffers.logits[: len(x)])

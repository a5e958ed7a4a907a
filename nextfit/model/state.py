"""Storage of everything sequences leave behind: pages for attention, one slot per sequence for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.model.buffers import Take
from nextfit.ops.delta_net import DeltaState, replayed
from nextfit.ops.history import History, commit
from nextfit.ops.precision import wide
from nextfit.ops.sparse_attention import RING, KVPages


@dataclass(frozen=True, slots=True)
class StateShape:
    """Sizes of the storage; page 0 and slot 0 belong to nobody and are what padding refers to."""

    slots: int  # sequences that may be alive at once
    pages: int
    page_size: int  # tokens, a multiple of the block size
    window: int  # rows of a verify step: 1 + draft depth


@dataclass(frozen=True, slots=True)
class LinearState:
    conv: History
    delta: DeltaState


class State:
    """Per-layer states of the trunk (`layers`), of n-gram layers (`ngram`), of the draft head, and token ids."""

    def __init__(self, c: ModelConfig, shape: StateShape, dtype: torch.dtype, take: Take) -> None:
        self.shape = shape
        self._dtype, self._take = dtype, take
        self.layers: list[KVPages | LinearState] = [
            self._linear(c) if kind == "linear_attention" else self._attention(c, shift=0)
            for kind in c.layer_types
        ]
        reach = (c.ple_conv_kernel_size - 1) * c.ngram_size
        self.ngram = {i: self._history(reach, c.hc_count * c.hidden_size, dtype) for i in c.ple_layers}
        self.tokens = self._history(c.ngram_size - 1, 1, torch.int64, initial=c.eos_token_id)
        # of the last row: a request that resumes after it gives it to the draft head with its own next token
        self.streams = self._history(1, c.hc_count * c.hidden_size, dtype)
        self.draft = self._attention(c, shift=1) if c.mtp_num_hidden_layers else None

    @property
    def device(self) -> torch.device:
        return self.tokens.tail.device

    def copy_slots(self, sources: Tensor, targets: Tensor) -> None:
        """Copy all that recurrent slots hold, [n] int64 each; pages are not part of it."""
        for tensor in self.in_slots():
            tensor[targets] = tensor[sources]

    def commit_slots(self, slots: Tensor, rows: Tensor) -> None:
        """Commit the first `rows` [n] logged rows of `slots` [n] without a forward pass."""
        for history in self._histories():
            commit(history, slots, rows)
        for state in self.layers:
            if isinstance(state, LinearState):
                state.delta.matrix[slots] = replayed(state.delta, slots, rows)

    def paged(self) -> Iterator[Tensor]:
        """Every tensor whose first axis is the page."""
        for p in self._pages():
            yield from (p.key, p.value, p.block)

    def committed(self) -> Iterator[Tensor]:
        """Every tensor whose first axis is the recurrent slot, without the logs of verify rows."""
        yield from (p.ring for p in self._pages())
        yield from (s.delta.matrix for s in self.layers if isinstance(s, LinearState))
        yield from (history.tail for history in self._histories())

    def in_slots(self) -> Iterator[Tensor]:
        """Every tensor whose first axis is the recurrent slot."""
        yield from self.committed()
        for s in self.layers:
            if isinstance(s, LinearState):
                yield from (getattr(s.delta, f.name) for f in fields(s.delta) if f.name != "matrix")
        yield from (history.log for history in self._histories())

    def _pages(self) -> list[KVPages]:
        return [s for s in [*self.layers, self.draft] if isinstance(s, KVPages)]

    def _histories(self) -> list[History]:
        convs = [s.conv for s in self.layers if isinstance(s, LinearState)]
        return [*convs, *self.ngram.values(), self.tokens, self.streams]

    def _history(self, reach: int, channels: int, dtype: torch.dtype, initial: int = 0) -> History:
        s = self.shape
        tail = self._take("recurrent slots", (s.slots, reach, channels), dtype)
        return History(tail, self._take("commit logs", (s.slots, s.window, channels), dtype), initial)

    def _attention(self, c: ModelConfig, shift: int) -> KVPages:
        s, dtype = self.shape, self._dtype
        kv = (s.pages, s.page_size, c.num_key_value_heads, c.head_dim)
        blocks = (s.pages, s.page_size // c.indexer_compress_ratio, c.indexer_head_dim)
        pages, index = ("draft", "draft") if shift else ("K/V pages", "index keys")
        return KVPages(
            self._take(pages, kv, dtype),
            self._take(pages, kv, dtype),
            self._take(index, blocks, dtype),
            self._take("recurrent slots", (s.slots, RING, c.indexer_head_dim), dtype),
            shift,
        )

    def _linear(self, c: ModelConfig) -> LinearState:
        s, w = self.shape, wide(self._dtype)
        heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
        channels = 2 * c.linear_num_key_heads * dk + heads * dv
        delta = DeltaState(
            self._take("recurrent slots", (s.slots, heads, dk, dv), w),
            self._take("commit logs", (s.slots, s.window, heads, dk), w),
            self._take("commit logs", (s.slots, s.window, heads, dv), w),
            self._take("commit logs", (s.slots, s.window, heads), w),
            self._take("commit logs", (s.slots, s.window, heads), w),
        )
        return LinearState(self._history(c.linear_conv_kernel_dim - 1, channels, self._dtype), delta)

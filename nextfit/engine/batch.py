"""From scheduled rows to the tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nextfit.engine.sequence import Sequence
from nextfit.ops.batch import Batch


class Span(NamedTuple):
    """Consecutive rows of one sequence: `tokens` at positions `first`, `first` + 1, ..."""

    sequence: Sequence
    first: int
    tokens: list[int]
    decode: bool


class PageTables:
    """The pages of running sequences as a step reads them, by recurrent slot; only what is new is written."""

    def __init__(self, memory: Tensor) -> None:
        """`memory` [2 * sequences + 1, most pages of one] int64: by slot, number 0 nobody's; then a step's."""
        self.device, slots = memory.device, len(memory) // 2 + 1
        self._table, self._step = memory[:slots], memory[slots:].view(-1)
        self._written: list[tuple[list[int], int]] = [([], 0)] * slots  # (list of the owner, how much of it)

    def of(self, sequences: Seq[Sequence], slots: Tensor) -> Tensor:
        """[sequences, most pages of one of them] int64; entries past a sequence's last page are 0.

        Valid until the next call."""
        for s in sequences:
            owner, count = self._written[s.slot]
            if owner is s.pages and count == len(s.pages):
                continue
            if owner is not s.pages or count > len(s.pages):
                self._table[s.slot] = count = 0
            self._table[s.slot, count : len(s.pages)] = ints(s.pages[count:], self.device)
            self._written[s.slot] = s.pages, len(s.pages)
        width = max(len(s.pages) for s in sequences)
        out = self._step[: len(sequences) * width].view(len(sequences), width)
        return torch.index_select(self._table[:, :width], 0, slots, out=out)


def ints(values: Seq[int], device: torch.device) -> Tensor:
    """[n] int64; by way of numpy, which reads a list several times faster than torch does."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)


def take(x: Tensor, rows: list[int]) -> Tensor:
    """x[rows], without a copy where that is x."""
    if len(rows) == x.shape[0] and rows == list(range(len(rows))):
        return x
    return x[ints(rows, x.device)]


def make_batch(spans: Seq[Span], tables: PageTables) -> Batch:
    """Ragged batch of the spans in their order (decode spans first)."""
    n, sequences = len(spans), [s.sequence for s in spans]
    heads = [s.slot for s in sequences] + [s.replay for s in sequences]
    numbers = ints(heads + [t for s in spans for t in s.tokens], tables.device)
    return Batch(
        tokens=numbers[2 * n :],
        lengths=tuple([len(s.tokens) for s in spans]),
        firsts=tuple([s.first for s in spans]),
        slots=numbers[:n],
        replay=numbers[n : 2 * n],
        pages=tables.of(sequences, numbers[:n]),
        decode_sequences=sum([s.decode for s in spans]),
    )


def other_rows(
    batch: Batch, keep: Seq[int], tokens: list[int], lengths: Seq[int], firsts: Seq[int], decode: int
) -> Batch:
    """Other rows of the sequences `keep` of a batch, for the draft head: nothing of it is logged or replayed."""
    slots, replay, pages = batch.slots, batch.replay, batch.pages
    if len(keep) < len(batch.lengths):
        index = ints(keep, batch.tokens.device)
        slots, replay, pages = slots[index], replay[index], pages[index]
    read = ints(tokens, batch.tokens.device)
    return Batch(read, tuple(lengths), tuple(firsts), slots, replay, pages, decode)

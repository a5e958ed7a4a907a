"""From scheduled rows to the tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nextfit.engine.sequence import Sequence
from nextfit.ops.batch import Batch


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence: `tokens` at positions `first`, `first` + 1, ..."""

    sequence: Sequence
    first: int
    tokens: list[int]
    decode: bool


class PageTables:
    """The pages of running sequences as a step reads them, by recurrent slot; only what is new is written."""

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        """`width` is the most pages of one sequence."""
        self.device = device
        self._table = torch.zeros(slots, width, dtype=torch.int64, device=device)
        self._written: list[tuple[list[int], int]] = [([], 0)] * slots  # (list of the owner, how much of it)

    def of(self, sequences: Seq[Sequence], slots: Tensor) -> Tensor:
        """[sequences, most pages of one of them] int64; entries past a sequence's last page are 0."""
        for s in sequences:
            owner, count = self._written[s.slot]
            if owner is s.pages and count == len(s.pages):
                continue
            if owner is not s.pages or count > len(s.pages):
                self._table[s.slot] = count = 0
            self._table[s.slot, count : len(s.pages)] = ints(s.pages[count:], self.device)
            self._written[s.slot] = s.pages, len(s.pages)
        return self._table[slots, : max(len(s.pages) for s in sequences)]


def ints(values: Seq[int], device: torch.device) -> Tensor:
    """[n] int64; by way of numpy, which reads a list several times faster than torch does."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)


def take(x: Tensor, rows: list[int]) -> Tensor:
    """x[rows], without a copy where that is all of them."""
    return x if rows == list(range(len(x))) else x[ints(rows, x.device)]


def make_batch(spans: Seq[Span], tables: PageTables) -> Batch:
    """Ragged batch of the spans in their order (decode spans first)."""
    sequences, device = [s.sequence for s in spans], tables.device
    slots = ints([s.slot for s in sequences], device)
    return Batch(
        tokens=ints([t for s in spans for t in s.tokens], device),
        lengths=tuple(len(s.tokens) for s in spans),
        firsts=tuple(s.first for s in spans),
        slots=slots,
        replay=ints([s.replay for s in sequences], device),
        pages=tables.of(sequences, slots),
        decode_sequences=sum(s.decode for s in spans),
    )


def next_rows(batch: Batch, keep: list[int], tokens: list[int]) -> Batch:
    """One decode row after the last of each sequence of `batch` whose number is in `keep`."""
    return Batch(
        tokens=ints(tokens, batch.tokens.device),
        lengths=(1,) * len(keep),
        firsts=tuple(batch.firsts[i] + batch.lengths[i] for i in keep),
        slots=take(batch.slots, keep),
        replay=take(batch.replay, keep),
        pages=take(batch.pages, keep),
        decode_sequences=len(keep),
    )

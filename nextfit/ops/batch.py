"""The input of one step: a ragged batch of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of several sequences, one after the other, without padding.

    Sequence s contributes `lengths[s]` consecutive rows at positions `firsts[s]`, `firsts[s]` + 1, ...
    The first `decode_sequences` are decode or verify sequences: their rows are logged, and committed when a
    later batch says how many of them were accepted (`replay`). The rows of all others are known to be part
    of the sequence and are committed by the step itself.
    """

    tokens: Tensor  # [rows] int64
    lengths: tuple[int, ...]
    firsts: tuple[int, ...]
    slots: Tensor  # [sequences] int64, recurrent slot
    replay: Tensor  # [sequences] int64, logged rows to commit before anything else
    pages: (
        Tensor  # [sequences, table width] int64, page of each `page_size` token slots; unused entries are 0
    )
    decode_sequences: int

    @cached_property
    def decode_rows(self) -> int:
        """Decode and verify rows come first; prefill rows follow."""
        return sum(self.lengths[: self.decode_sequences])

    @property
    def classes(self) -> tuple[tuple[bool, slice, Batch], ...]:
        """Of each class that has rows: whether it is the decode class, its rows, and they alone as a batch."""
        if self.decode_sequences in (0, len(self.lengths)):
            return ((self.decode_sequences > 0, slice(len(self.tokens)), self),)
        n = self.decode_rows
        first, second = self._halves
        return (True, slice(n), first), (False, slice(n, len(self.tokens)), second)

    @cached_property
    def _halves(self) -> tuple[Batch, Batch]:
        d, n = self.decode_sequences, self.decode_rows
        return self._part(slice(d), slice(n), d), self._part(slice(d, None), slice(n, None), 0)

    def _part(self, sequences: slice, rows: slice, decode: int) -> Batch:
        slots, replay, pages = (x[sequences] for x in (self.slots, self.replay, self.pages))
        return Batch(
            self.tokens[rows],
            self.lengths[sequences],
            self.firsts[sequences],
            slots,
            replay,
            pages,
            decode,
        )

    @cached_property
    def table(self) -> Tensor:
        """[sequences, 5] int64: slot, rows to replay, first row, rows, first position."""
        numbers = [self.starts[:-1], self.lengths, self.firsts]
        known = torch.tensor(numbers, dtype=torch.int64, device=self.slots.device)
        return torch.cat([self.slots[None], self.replay[None], known]).T.contiguous()

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each sequence, and the number of rows as last entry."""
        starts = [0]
        for n in self.lengths:
            starts.append(starts[-1] + n)
        return tuple(starts)

    @cached_property
    def sequence(self) -> Tensor:
        """[rows] int64: the sequence each row belongs to."""
        counts = torch.tensor(self.lengths, device=self.tokens.device)
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=self.tokens.device), counts)

    @cached_property
    def offset(self) -> Tensor:
        """[rows] int64: number of the row within its sequence's rows of this step."""
        starts = torch.tensor(self.starts[:-1], device=self.tokens.device)
        return torch.arange(len(self.tokens), device=self.tokens.device) - starts[self.sequence]

    @cached_property
    def positions(self) -> Tensor:
        """[rows] int64."""
        return torch.tensor(self.firsts, device=self.tokens.device)[self.sequence] + self.offset

    @cached_property
    def fresh(self) -> Tensor:
        """[sequences] bool: sequences that begin here, whatever an earlier owner left in their slot."""
        return torch.tensor([p == 0 for p in self.firsts], device=self.tokens.device)

    @cached_property
    def decode_slots(self) -> Tensor | slice:
        """Slots of the decode sequences, as a slice where they are consecutive: indexing with it needs no copy."""
        slots = self.slots[: self.decode_sequences].tolist()
        consecutive = slots == list(range(slots[0], slots[0] + len(slots)))
        return slice(slots[0], slots[0] + len(slots)) if consecutive else self.slots[: len(slots)]

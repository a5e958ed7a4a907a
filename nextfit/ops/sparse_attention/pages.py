"""Paged keys, values and block keys of one attention layer, and the raw index keys of open blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.precision import wide

RING = 32  # raw index keys kept per slot: an open block, and all rows that one round may put beyond it


@dataclass(frozen=True, slots=True)
class KVPages:
    """Row p of a sequence lies in token slot p + `shift` of its pages, block b in block slot b + `shift`.

    The trunk has shift 0. A draft row also depends on the token after it, so it lies one slot later, where
    a page that two sequences share holds only what their common tokens determine (shift 1).
    """

    key: Tensor  # [pages, page size, kv heads, head dim], normed and rotated
    value: Tensor  # [pages, page size, kv heads, head dim]
    block: Tensor  # [pages, page size / ratio, index dim], pooled, normed and rotated
    ring: Tensor  # [slots, RING, index dim]: raw index key of row p at p % RING, overwritten on rewind
    shift: int = 0

    def write(self, batch: Batch, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values, [rows, kv heads, head dim] each."""
        page, offset = _address(batch, batch.sequence, batch.positions + self.shift, self.key.shape[1])
        self.key[page, offset] = key
        self.value[page, offset] = value

    def write_blocks(self, batch: Batch, rows: Tensor, ratio: int, key: Tensor) -> None:
        """Store the keys [n, index dim] of the blocks that `rows` [n] complete."""
        block = batch.positions[rows] // ratio + self.shift
        page, offset = _address(batch, batch.sequence[rows], block, self.block.shape[1])
        self.block[page, offset] = key

    def pool(self, batch: Batch, raw: Tensor, rows: Tensor, ratio: int) -> Tensor:
        """Mean raw index key of the blocks that `rows` [n] complete, [n, index dim], float32 inside.

        `raw` [rows, index dim] are the step's own; earlier ones come from the ring, which then takes the step's.
        """
        slot, position = batch.slots[batch.sequence], batch.positions
        window = []
        for age in reversed(range(ratio)):
            earlier = self.ring[slot[rows], (position[rows] - age) % RING]
            inside = batch.offset[rows] >= age
            window.append(torch.where(inside[:, None], raw[(rows - age).clamp_min(0)], earlier))
        lengths = torch.tensor(batch.lengths, device=raw.device)[batch.sequence]
        last = (batch.offset >= lengths - RING).nonzero()[:, 0]
        self.ring[slot[last], position[last] % RING] = raw[last]
        return torch.stack(window).to(wide(raw.dtype)).mean(0).to(raw.dtype)

    def tokens(self, table: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of rows `first`..`end`-1 of the sequence with page table `table` [width], contiguous."""
        return self._range(self.key, table, first, end), self._range(self.value, table, first, end)

    def blocks(self, table: Tensor, first: int, end: int) -> Tensor:
        """Keys of blocks `first`..`end`-1, [end - first, index dim]."""
        return self._range(self.block, table, first, end)

    def _range(self, stored: Tensor, table: Tensor, first: int, end: int) -> Tensor:
        size, first, end = stored.shape[1], first + self.shift, end + self.shift
        page = first // size
        return stored[table[page : -(-end // size)]].flatten(0, 1)[first - page * size : end - page * size]

    def gather(self, table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the given rows (int64, any shape): [*rows.shape, kv heads, head dim] each."""
        slot = rows + self.shift
        page, offset = table[slot // self.key.shape[1]], slot % self.key.shape[1]
        return self.key[page, offset], self.value[page, offset]


def _address(batch: Batch, sequence: Tensor, slot: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    return batch.pages[sequence, slot // page_size], slot % page_size

"""The one allocation of an engine: what the plan says, handed out as named views until all of it is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from nextfit.config import ModelConfig
from nextfit.memory.plan_engine import ALIGNMENT, arena, host_tier, table_width, widened_numbers
from nextfit.memory.plan_rows import colour, crossing
from nextfit.memory.plan_values import ACTIVATION, Buffer, Limits
from nextfit.model import Buffers, Model, State, StateShape, new_buffers

IN_SLOTS = ("recurrent slots", "commit logs")  # owners of tensors whose first axis is the recurrent slot


class Arena:
    """One storage of exactly the planned bytes, written once at start-up so that they are really there."""

    def __init__(
        self, planned: Iterable[Buffer], device: torch.device, snapshots: int = 0, pinned: bool = False
    ) -> None:
        """The last `snapshots` slots of every tensor in slots are the snapshot pool's.

        `pinned`: host memory that a GPU can read at full speed.
        """
        self.planned: Counter[str] = Counter()
        for b in planned:
            self.planned[b.owner] += b.bytes
        self.taken: Counter[str] = Counter()
        nbytes = self.planned.total()
        self.storage = torch.empty(nbytes, dtype=torch.uint8, device=device, pin_memory=pinned).zero_()
        self._snapshots, self._at = snapshots, 0

    def take(self, owner: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros of their own for `owner`, beginning on a cache line."""
        nbytes = prod(shape) * dtype.itemsize
        at = -(-self._at // ALIGNMENT) * ALIGNMENT
        assert at + nbytes <= len(self.storage), f"{owner}: {nbytes} bytes at {at} of {len(self.storage)}"
        kept = nbytes // shape[0] * self._snapshots if owner in IN_SLOTS else 0
        self.taken["snapshot pool"] += kept
        self.taken[owner] += nbytes - kept
        self._at = at + nbytes
        return self.storage[at : self._at].view(dtype).view(shape)

    def close(self) -> None:
        """To be called when the engine has taken what it needs: that must be the plan, owner by owner."""
        self.taken["alignment"] = len(self.storage) - self.taken.total()
        self.taken = +self.taken  # without those that took nothing
        assert self.planned == self.taken, f"bytes planned and taken differ: {self.planned}, {self.taken}"


@dataclass(frozen=True, slots=True)
class Memory:
    """Two arenas, the device's and the host tier's, and the views of them that steps work on."""

    arena: Arena
    host: Arena
    state: State
    buffers: Buffers
    cold: Tensor  # [pages, bytes of a page of all layers] uint8 in the host's memory

    def planned(self) -> Counter[str]:
        """Owner -> bytes of both arenas."""
        return self.arena.planned + self.host.planned

    def taken(self) -> Counter[str]:
        return self.arena.taken + self.host.taken


def allocate(model: Model, limits: Limits) -> Memory:
    """What an engine with these limits needs besides the weights."""
    c, dtype, device = model.config, model.dtype, model.device
    whole = Arena(arena(c, limits), device, limits.snapshots)
    slots = limits.sequences + limits.snapshots + 1  # number 0 of slots and pages is nobody's
    shape = StateShape(slots, limits.pages() + 1, limits.page_size, limits.window)
    state = model.new_state(shape, whole.take)
    buffers = _buffers(c, limits, dtype, whole)
    whole.close()
    host = Arena(host_tier(c, limits), torch.device("cpu"), pinned=device.type == "cuda")
    pages = limits.host_pages() + 1 if limits.host_kv_tokens else 0
    page = sum(tensor[0].nbytes for tensor in state.paged())
    cold = host.take("host pages", (pages, page), torch.uint8)
    host.close()
    return Memory(whole, host, state, buffers, cold)


def _buffers(c: ModelConfig, limits: Limits, dtype: torch.dtype, whole: Arena) -> Buffers:
    """What crosses operators: coloured parts of the row arena, and owners of their own."""
    rows = limits.rows
    offsets, each = colour(crossing(c, ACTIVATION[limits.dtype]))
    row_arena = whole.take("row arena", (rows * each,), torch.uint8)

    def take(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name not in offsets:
            return whole.take(name, shape, dtype)
        at = rows * offsets[name]
        return row_arena[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    tables = (2 * limits.sequences + 1, table_width(limits))
    space = widened_numbers(c) * max(4, dtype.itemsize)
    return new_buffers(c, dtype, rows, limits.decode_rows, tables, space, take)

"""Debug mode: what nobody has written is NaN, and every step's results and books are checked (--paranoid)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.memory.arena import Memory
from nextfit.model import Buffers, DraftHead, Model, State
from nextfit.ops.batch import Batch


class Paranoid:
    """Poisons the memory of one engine around its steps; `model` is its model with checked results.

    Poison is NaN; of whole numbers it is the smallest, which is no token and no page. Faults are AssertionErrors, or
    IndexErrors where poison was taken for a number.
    """

    def __init__(self, scheduler: Scheduler, memory: Memory, model: Model) -> None:
        self.model = CheckedModel(model)
        self._scheduler, self._buffers = scheduler, memory.buffers
        self._paged, self._slots = list(memory.state.paged()), list(memory.state.in_slots())
        self._cold = memory.cold
        self._free_pages: set[int] = set()  # poisoned already
        self._free_cold: set[int] = set()
        for tensor in (*self._paged, *self._slots, self._cold):
            poison(tensor)

    @contextmanager
    def watch(self, rows: list[Rows]) -> Iterator[None]:
        """Around the computation of scheduled rows."""
        self._before(rows)
        # while this is on, torch fills what `empty` and its kin return
        told, warn = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(told, warn_only=warn)
        self._after()

    def _before(self, rows: list[Rows]) -> None:
        """Nothing is written yet of the step's buffers, of slots that begin, and of pages past what is computed."""
        b = self._buffers
        for tensor in (
            b.streams,
            b.handed,
            b.inputs,
            b.outputs,
            b.logits,
            b.space,
            b.tables[len(b.tables) // 2 + 1 :],
        ):
            poison(tensor)
        sequences = [r.sequence for r in rows]
        self._poison(self._slots, {s.slot for s in sequences if s.computed == 0 or s.restore})
        size = self._scheduler.page_size
        unwritten = {p for s in sequences for p in s.pages[-(-(s.computed + 1) // size) :]}
        self._poison(self._paged, unwritten - self._free_pages)
        self._free_pages -= {p for s in sequences for p in s.pages}

    def _after(self) -> None:
        self._scheduler.check()
        pages, slots = self._scheduler.cache.pages, self._scheduler.slots
        free = {p for p in range(1, pages.capacity + 1) if not pages.holders(p)}
        self._poison(self._paged, free - self._free_pages)
        self._free_pages |= free
        host = self._scheduler.cache.host
        cold, snapshots = host.pages.unused(), host.snapshots
        self._poison([self._cold], cold - self._free_cold)
        self._free_cold = cold
        unused = {slots.capacity + n for n in range(1, snapshots.capacity + 1) if not snapshots.holders(n)}
        running = {s.slot for s in self._scheduler.running}
        self._poison(self._slots, unused | set(range(slots.capacity + 1)) - running)

    def _poison(self, tensors: Iterable[Tensor], numbers: set[int]) -> None:
        for tensor in tensors if numbers else ():
            tensor[sorted(numbers)] = _value(tensor.dtype)


def _value(dtype: torch.dtype) -> float | int:
    if dtype == torch.uint8:
        return 255  # of raw bytes that is NaN in every type
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def poison(x: Tensor) -> None:
    """Fill x with what nobody should read."""
    x.fill_(_value(x.dtype))


def _require_finite(what: str, x: Tensor) -> Tensor:
    rows = x.isfinite().all(1)
    assert rows.all(), (
        f"{what}: rows {rows.logical_not().nonzero()[:, 0].tolist()} of {len(x)} are not finite"
    )
    return x


class CheckedModel(Model):
    """The same model; what it returns is finite."""

    def __init__(self, model: Model) -> None:
        vars(self).update(vars(model))
        self.draft = CheckedDraft(model.draft) if model.draft else None

    def forward(self, batch: Batch, state: State, buffers: Buffers) -> Tensor:
        return _require_finite("streams", super().forward(batch, state, buffers))

    def logits(self, x: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        return _require_finite("logits", super().logits(x, decode_rows, buffers))


class CheckedDraft(DraftHead):
    """The same draft head."""

    def __init__(self, draft: DraftHead) -> None:
        vars(self).update(vars(draft))

    def forward(self, batch: Batch, state: State, buffers: Buffers) -> Tensor:
        return _require_finite("the draft head's streams", super().forward(batch, state, buffers))

    def logits(self, z: Tensor, decode_rows: int, buffers: Buffers) -> Tensor:
        return _require_finite("the draft head's logits", super().logits(z, decode_rows, buffers))

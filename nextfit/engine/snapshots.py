"""Copies of recurrent state for the prefix cache: where the bookkeeping meets the tensors."""

from __future__ import annotations

import torch

from nextfit.cache import TOKEN_BYTES, encode
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence
from nextfit.model import State


class Snapshots:
    """Snapshot n of the cache lies in recurrent slot `sequences` + n of the state."""

    def __init__(self, scheduler: Scheduler, state: State) -> None:
        self.cache, self.config, self.state = scheduler.cache, scheduler.config, state

    def restore(self, rows: list[Rows]) -> None:
        """Copy the snapshots that the step's sequences begin from into their slots."""
        fresh = [r.sequence for r in rows if r.sequence.restore]
        self._copy([self.slot(s.restore) for s in fresh], [s.slot for s in fresh])
        for s in fresh:
            self.cache.host.snapshots.give([s.restore])
            s.restore = 0

    def save(self, rows: list[Rows]) -> None:
        """Keep the states that the step has reached: of prompts where they are to stop, of answers now and then.

        What a finished round committed last has no draft rows yet, so it is not kept.
        """
        every = self.config.whole_pages(self.config.answer_every)
        for s in [r.sequence for r in rows if r.sequence.finish is None and self.config.snapshots]:
            if s.stops and s.computed == s.stops[0]:
                self._save(s, s.stops.pop(0))
            past = s.computed % every  # a snapshot's place
            if past < s.replay:
                at = s.computed - past
                if s.latest:
                    self.cache.discard(s.key, s.latest)
                s.latest = at if self._save(s, at) else 0

    def _save(self, s: Sequence, length: int) -> bool:
        """Snapshot of `s` after `length` tokens, which are committed or logged, unless there is one or no room."""
        if len(s.key) < length * TOKEN_BYTES:
            s.key += encode(s.tokens[len(s.key) // TOKEN_BYTES :])
        self.cache.insert(s.key, s.pages[: length // self.config.page_size])
        number = self.cache.snapshot(s.key, length)
        if number is None:
            return False
        target = self.slot(number)
        self._copy([s.slot], [target])
        if s.replay:
            slots, rows = (
                torch.tensor([n], device=self.state.device) for n in (target, length - s.computed + s.replay)
            )
            self.state.commit_slots(slots, rows)
        return True

    def slot(self, number: int) -> int:
        """The recurrent slot that holds snapshot `number`."""
        return self.config.sequences + number

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        if sources:
            device = self.state.device
            self.state.copy_slots(torch.tensor(sources, device=device), torch.tensor(targets, device=device))

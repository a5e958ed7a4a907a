"""Which rows the next step computes. Plain values; no torch.

One rule: every request has computed tokens and known tokens, and a step lets the first catch up with the
second under a budget of prefill rows. Decoding, chunked prefill and resuming after preemption fall out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nextfit.cache import Pool
from nextfit.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of one sequence: its uncomputed tokens from `sequence.computed` on, then its drafts."""

    sequence: Sequence
    count: int
    decode: bool

    @property
    def last(self) -> bool:
        """Whether the step reaches the end of what is known, so that a token is sampled."""
        return self.sequence.computed + self.count >= len(self.sequence.tokens)


class Scheduler:
    """Admission, the row budget, and preemption of the youngest when pages run out."""

    def __init__(self, slots: int, pages: int, page_size: int, prefill_rows: int) -> None:
        self.slots, self.pages = Pool(slots), Pool(pages)
        self.page_size, self.prefill_rows = page_size, prefill_rows
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is; what it holds is free again."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Rows]:
        """Rows of the next step, decode rows first; empty when there is nothing to do."""
        step: list[Rows] = []
        for s in [s for s in self.running if s.decoding]:
            if s in self.running and self._cover(s, len(s.tokens) + len(s.drafts), step):
                step.append(Rows(s, 1 + len(s.drafts), decode=True))
        budget = self.prefill_rows
        for s in [s for s in self.running if not s.decoding]:
            if s in self.running:
                budget -= self._prefill(s, budget, step)
        while budget > 0 and self.waiting and self.slots.free and self._fits(self.waiting[0]):
            s = self.waiting.popleft()
            s.slot = self.slots.take()[0]
            self.running.append(s)
            budget -= self._prefill(s, budget, step)
        return step

    def _prefill(self, s: Sequence, budget: int, step: list[Rows]) -> int:
        count = min(budget, len(s.tokens) - s.computed)
        if count <= 0 or not self._cover(s, s.computed + count, step):
            return 0
        step.append(Rows(s, count, decode=False))
        return count

    def _needed(self, tokens: int) -> int:
        return -(-(tokens + 1) // self.page_size)  # a draft row lies one slot later

    def _fits(self, s: Sequence) -> bool:
        return self._needed(len(s.tokens)) <= self.pages.free

    def _cover(self, s: Sequence, tokens: int, step: list[Rows]) -> bool:
        """Give `s` the pages for its first `tokens` tokens and the drafts after them, if need be of younger ones.

        The oldest is never preempted, so it always gets on.
        """
        missing = self._needed(min(s.limit, tokens + 1 + s.draft_depth)) - len(s.pages)
        while missing > self.pages.free:
            youngest = max(self.running, key=lambda r: r.order)
            if youngest is s:
                return False
            self._preempt(youngest, step)
        if missing > 0:
            s.pages += self.pages.take(missing)
        return True

    def _preempt(self, s: Sequence, step: list[Rows]) -> None:
        """Back to the queue, and out of `step`; its tokens are computed again when there is room."""
        step[:] = [r for r in step if r.sequence is not s]
        self.running.remove(s)
        self._release(s)
        s.computed, s.replay, s.drafts = 0, 0, []
        self.waiting.appendleft(s)

    def _release(self, s: Sequence) -> None:
        self.pages.give(s.pages)
        self.slots.give([s.slot])
        s.pages, s.slot = [], 0

    def check(self) -> None:
        """What is held and what is free add up, and nothing is held twice."""
        self.slots.check()
        self.pages.check()
        held = [p for s in self.running for p in s.pages]
        assert len(held) == len(set(held)) == self.pages.capacity - self.pages.free
        assert (
            len({s.slot for s in self.running}) == len(self.running) == self.slots.capacity - self.slots.free
        )

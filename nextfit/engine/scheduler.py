"""Which rows the next step computes. Plain values; no torch.

One rule: every request has computed tokens and known tokens, and a step lets the first catch up with the
second under a budget of prefill rows. Decoding, chunked prefill, prefix hits and resuming after preemption
fall out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nextfit.cache import (
    TOKEN_BYTES,
    HostSize,
    HostTier,
    Pool,
    PrefixCache,
    SharedPool,
    encode,
    resume_limit,
    snapshot_positions,
)
from nextfit.engine.config import EngineConfig
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

    def __init__(self, config: EngineConfig) -> None:
        self.config, self.page_size = config, config.page_size
        self.slots = Pool(config.sequences)
        host = HostTier(HostSize(config.snapshots, pages=0))
        self.cache = PrefixCache(SharedPool(config.pages()), config.page_size, host)
        self.waiting: deque[Sequence] = deque()  # in the order of arrival
        self.running: list[Sequence] = []
        self.preemptions = 0

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
        before = len(self.running)
        for s in [s for s in self.running if s.decoding]:
            if s in self.running and self._cover(s, len(s.tokens) + len(s.drafts), step):
                step.append(Rows(s, 1 + len(s.drafts), decode=True))
        budget = self.config.prefill_chunk
        for s in [s for s in self.running if not s.decoding]:
            if s in self.running:
                budget -= self._prefill(s, budget, step)
        crowded = len(self.running) < before  # somebody was preempted and would take back what was needed
        for s in list(self.waiting):
            if crowded or budget <= 0 or not self.slots.free:
                break
            if self._awaited(s):
                continue
            if not self._admit(s):
                break
            budget -= self._prefill(s, budget, step)
        return step

    def _prefill(self, s: Sequence, budget: int, step: list[Rows]) -> int:
        end = s.stops[0] if s.stops else len(s.tokens)  # a snapshot needs the state exactly there
        count = min(budget, end - s.computed)
        if count <= 0 or not self._cover(s, s.computed + count, step):
            return 0
        step.append(Rows(s, count, decode=False))
        return count

    def _awaited(self, s: Sequence) -> bool:
        """Whether a running prefill is about to leave a snapshot that `s` can begin from."""
        limit = resume_limit(len(s.tokens), self.page_size)
        stops = [(stop, r) for r in self.running for stop in r.stops if stop <= limit]
        if not stops:
            return False
        key = encode(s.tokens)
        have = self.cache.match(key, limit).length
        return any(have < stop and r.key.startswith(key[: stop * TOKEN_BYTES]) for stop, r in stops)

    def _admit(self, s: Sequence) -> bool:
        """Give `s` a slot and the pages up to its next token, those of the longest cached prefix among them.

        A page for each of the others must be left, or it would soon be preempted.
        """
        s.key = encode(s.tokens)
        limit = resume_limit(len(s.tokens), self.page_size)
        admission = self.cache.admit(s.key, limit, self._needed(s, len(s.tokens)), len(self.running))
        if admission is None:
            return False
        hit = admission.hit
        s.pages, s.computed, s.restore = admission.pages, hit.length, hit.snapshot
        s.cached, s.behind = hit.length if s.cached is None else s.cached, hit.length > 0
        if self.config.snapshots:
            every = self.config.whole_pages(self.config.snapshot_every)
            s.stops = list(
                snapshot_positions(hit.length, len(s.tokens), every, self.page_size, hit.divergence)
            )
        s.slot = self.slots.take()[0]
        self.waiting.remove(s)
        self.running.append(s)
        return True

    def _needed(self, s: Sequence, tokens: int) -> int:
        """Pages of the first `tokens` tokens and the drafts after them; a draft row lies one slot later."""
        return -(-(min(s.limit, tokens + 1 + s.draft_depth) + 1) // self.page_size)

    def _cover(self, s: Sequence, tokens: int, step: list[Rows]) -> bool:
        """Give `s` the pages for its first `tokens` tokens and the drafts after them, if need be of younger ones.

        The oldest is never preempted, so it always gets on.
        """
        missing = self._needed(s, tokens) - len(s.pages)
        while missing > 0:
            fresh = self.cache.reserve(missing)
            if fresh is not None:
                s.pages += fresh
                break
            youngest = max(self.running, key=lambda r: r.order)
            if youngest is s:
                return False
            self._preempt(youngest, step)
        return True

    def _preempt(self, s: Sequence, step: list[Rows]) -> None:
        """Back to the queue, and out of `step`; it resumes from its last snapshot when there is room."""
        self.preemptions += 1
        step[:] = [r for r in step if r.sequence is not s]
        self.running.remove(s)
        self._release(s)
        s.computed, s.replay, s.drafts = 0, 0, []
        at = sum(w.order < s.order for w in self.waiting)
        self.waiting.insert(at, s)

    def _release(self, s: Sequence) -> None:
        self.cache.pages.give(s.pages)
        self.slots.give([s.slot])
        if s.restore:
            self.cache.host.snapshots.give([s.restore])
        s.pages, s.slot, s.restore, s.stops, s.latest = [], 0, 0, [], 0

    def check(self) -> None:
        """What is held and what is free add up, and nothing is held twice."""
        self.slots.check()
        held = [p for s in self.running for p in s.pages]
        self.cache.check(held, [s.restore for s in self.running if s.restore])
        assert (
            len({s.slot for s in self.running}) == len(self.running) == self.slots.capacity - self.slots.free
        )

"""Which rows the next step computes. Plain values; no torch.

One rule: every request has computed tokens and known tokens, and a step lets the first catch up with the
second under a budget of prefill rows. Decoding, chunked prefill, prefix hits and resuming after preemption
fall out.
"""

from __future__ import annotations

from bisect import bisect, insort
from dataclasses import dataclass
from itertools import groupby

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
    """Admission, the budget of prompt rows, and preemption when slots or pages run out.

    Who goes first is `Sequence.rank`: by priority, then by arrival. The last of the lowest priority is preempted
    first, so the first of all always gets on.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config, self.page_size = config, config.page_size
        self.slots = Pool(config.sequences)
        host = HostTier(HostSize(config.snapshots, config.host_pages()))
        self.cache = PrefixCache(SharedPool(config.pages()), config.page_size, host)
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.key = encode(sequence.tokens)
        insort(self.waiting, sequence, key=Sequence.rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is; what it holds is free again."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Rows]:
        """Rows of the next step, decode rows first; empty when there is nothing to do.

        Every running sequence that decodes is in every step, if need be at the expense of later ones' pages, so
        `decode_gap` bounds the prompt rows between two of its tokens. Only the last of all, for which nobody makes
        room, stands still until there is some.
        """
        step: list[Rows] = []
        for s in sorted((s for s in self.running if s.decoding), key=Sequence.rank):
            if s in self.running and self._cover(s, len(s.tokens) + len(s.drafts), step):
                step.append(Rows(s, 1 + len(s.drafts), decode=True))
        self._admit_waiting(step)
        return step + self._share(self.config.prompt_rows(decoding=bool(step)))

    def _admit_waiting(self, step: list[Rows]) -> None:
        """Admit who fits, in the order of rank; for a higher priority those of lower ones make room."""
        for s in list(self.waiting):
            if not self.slots.free and self._last().priority <= s.priority:
                return
            if self._awaited(s):
                continue
            while not self._admit(s):
                if not self.running or self._last().priority <= s.priority:
                    return
                self._preempt(self._last(), step)

    def _last(self) -> Sequence:
        """Who is preempted first."""
        return max(self.running, key=Sequence.rank)

    def _share(self, budget: int) -> list[Rows]:
        """Prompt rows of a step, the most urgent priority first, and within one an equal share for everybody.

        What one does not need goes to those with more rows left, so of k prompts in progress one with n rows left
        is through after at most ceil(n / floor(budget / k)) steps, and one more for each of its snapshots.
        """
        rows = []
        prompts = sorted((s for s in self.running if not s.decoding), key=Sequence.rank)
        for _, group in groupby(prompts, lambda s: s.priority):
            sharing = sorted(list(group)[:budget], key=_rows_left)  # a row each, or the first ones
            for left, s in zip(range(len(sharing), 0, -1), sharing, strict=True):
                count = min(budget // left, _rows_left(s))
                rows.append(Rows(s, count, decode=False))
                budget -= count
        return rows

    def _awaited(self, s: Sequence) -> bool:
        """Whether `s` had better wait for a snapshot; found out again only when the one it waits for is there."""
        if s.awaits is None or s.awaits[1] not in s.awaits[0].stops:
            s.awaits = self._coming(s)
        return s.awaits is not None

    def _coming(self, s: Sequence) -> tuple[Sequence, int] | None:
        """A prefill that will leave snapshots `s` can begin from, and the last of them.

        One of lower priority is not waited for: it may itself have to wait for others that `s` goes before.
        """
        limit = resume_limit(s.resumable, self.page_size)
        ahead = [r for r in self.running if r.stops and r.priority <= s.priority]
        have = self.cache.match(s.key, limit).length if ahead else 0
        for r in ahead:
            stops = [stop for stop in r.stops if have < stop <= limit]
            parted = bisect(stops, False, key=lambda n: not r.key.startswith(s.key[: n * TOKEN_BYTES]))
            if parted:
                return r, stops[parted - 1]
        return None

    def _admit(self, s: Sequence) -> bool:
        """Give `s` a slot and the pages up to its next token, those of the longest cached prefix among them.

        The pages that are reserved for answers, its own and those of the others, must be left. One alone always fits,
        and who was just preempted does not: what it needed then, it would need now.
        """
        if not self.slots.free:
            return False
        limit, needed = resume_limit(s.resumable, self.page_size), self._needed(s, len(s.tokens))
        spare = self._promised(s) - needed + sum(self._promised(r) - len(r.pages) for r in self.running)
        admission = self.cache.admit(s.key, limit, needed, spare)
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

    def _promised(self, s: Sequence) -> int:
        """Pages of `s` at the end of its answer, or where its reservation is renewed, if that comes first."""
        reserve = self.config.answer_reserve
        answer = reserve * (s.generated // reserve + 1)
        return max(len(s.pages), self._needed(s, s.prompt_length + answer + s.draft_depth))

    def _cover(self, s: Sequence, tokens: int, step: list[Rows]) -> bool:
        """Give `s` the pages for its first `tokens` tokens and the drafts after them, if need be of later ones."""
        missing = self._needed(s, tokens) - len(s.pages)
        while missing > 0:
            fresh = self.cache.reserve(missing)
            if fresh is not None:
                s.pages += fresh
                break
            last = self._last()
            if last is s:
                return False
            self._preempt(last, step)
        return True

    def _preempt(self, s: Sequence, step: list[Rows]) -> None:
        """Back to the queue, and out of `step`; it resumes from its last snapshot when there is room."""
        self.preemptions += 1
        step[:] = [r for r in step if r.sequence is not s]
        self.running.remove(s)
        self._release(s)
        s.computed, s.replay, s.drafts = 0, 0, []
        self.add(s)

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


def _rows_left(s: Sequence) -> int:
    """Rows of a prompt up to its next snapshot, which needs the state exactly there, or its end."""
    return (s.stops[0] if s.stops else len(s.tokens)) - s.computed

"""What the prefix cache did in an engine, and whether it can be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from os.path import commonprefix

from nextfit.cache import PrefixCache
from nextfit.cache.tree import Node
from nextfit.engine.engine import Engine
from nextfit.engine.scheduler import Scheduler
from nextfit.engine.sequence import Sequence


class Watch:
    """Counts events in `seen`, and holds every hit against the tokens that were there before."""

    def __init__(self, e: Engine, seen: Counter, kind: Callable[[str], str]) -> None:
        self.scheduler, self.seen, self.kind = e.scheduler, seen, kind
        self.cached: dict[str, int] = {}  # request -> tokens of the hit when it first came in
        self._everybody: list[Sequence] = []
        self._discarding = False
        cache = e.scheduler.cache
        e.scheduler.add = self._add  # type: ignore[method-assign]
        e.scheduler._admit = self._admit  # type: ignore[method-assign]
        e.scheduler._awaited = self._awaited  # type: ignore[method-assign]
        cache.discard = self._discard  # type: ignore[method-assign]
        cache._forget = self._forget  # type: ignore[method-assign]
        cache._drop_end = self._drop_end  # type: ignore[method-assign]
        cache._demote_last = self._demote_last  # type: ignore[method-assign]
        cache._warm_up = self._warm_up  # type: ignore[method-assign]

    def _add(self, sequence: Sequence) -> None:
        self._everybody.append(sequence)
        Scheduler.add(self.scheduler, sequence)

    def _admit(self, s: Sequence) -> bool:
        again = s.cached is not None
        if not Scheduler._admit(self.scheduler, s):
            return False
        others = [q.tokens for q in self._everybody if q is not s or again]
        known = max((len(commonprefix([s.tokens, t])) for t in others), default=0)
        size, hit = self.scheduler.page_size, s.computed
        assert hit % size == 0 and hit <= min(known, len(s.tokens) - 1) // size * size, (hit, known)
        assert hit == 0 or self.scheduler.config.snapshots
        if not again:
            self.cached[s.request.id] = hit
            self.seen["hit", self.kind(s.request.id)] += hit > 0
            self.seen["missed", self.kind(s.request.id)] += hit == 0
        self.seen["resumed from a snapshot"] += again and hit > 0
        self.seen["resumed one token before its end"] += again and hit == len(s.tokens) - 1
        return True

    def _awaited(self, s: Sequence) -> bool:
        found = Scheduler._awaited(self.scheduler, s)
        self.seen["awaited"] += found
        return found

    def _discard(self, key: bytes, length: int) -> None:
        self._discarding = True
        PrefixCache.discard(self.scheduler.cache, key, length)
        self._discarding = False

    def _forget(self, node: object) -> None:
        self.seen["snapshots replaced" if self._discarding else "snapshots evicted"] += 1
        PrefixCache._forget(self.scheduler.cache, node)  # type: ignore[arg-type]

    def _drop_end(self, leaf: object, most: int) -> None:
        self.seen["pages evicted"] += 1
        PrefixCache._drop_end(self.scheduler.cache, leaf, most)  # type: ignore[arg-type]

    def _demote_last(self, node: Node) -> None:
        self.seen["pages to the host"] += 1
        PrefixCache._demote_last(self.scheduler.cache, node)

    def _warm_up(self, node: Node) -> list[int]:
        fresh = PrefixCache._warm_up(self.scheduler.cache, node)
        self.seen["pages back from the host"] += len(fresh)
        return fresh

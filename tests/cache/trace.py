"""Random traces: the cache beside the naive model, with memory whose contents prove every answer.

A step is that of an engine: requests are admitted and get pages, moves are copied and snapshots restored, rows
are written, then pages are donated, snapshots taken and requests end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from nextfit.cache import HostSize, HostTier, PrefixCache, SharedPool, encode, resume_limit
from tests.cache import naive
from tests.cache.naive import Naive, Prefix


@dataclass(frozen=True)
class Shape:
    pages: int = 24
    size: int = 4
    snapshots: int = 6
    host: int = 8
    alphabet: int = 2
    longest: int = 40


@dataclass(eq=False)
class Running:
    tokens: Prefix
    written: int  # tokens whose pages have their contents
    pages: list[int]
    twins: list[naive.Page]
    restore: tuple[int, int, naive.Snapshot] | None = None  # length, number, twin


@dataclass
class Trace:
    seed: int
    shape: Shape = Shape()
    operations: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        s = self.shape
        self.random = random.Random(self.seed)
        self.cache = PrefixCache(SharedPool(s.pages), s.size, HostTier(HostSize(s.snapshots, s.host)))
        self.naive = Naive(s.pages, s.size, s.host, s.snapshots)
        self.running: list[Running] = []
        self.device: dict[int, Prefix] = {}
        self.host: dict[int, Prefix] = {}
        self.snapshots: dict[int, Prefix] = {}
        self.twin: dict[int, naive.Page] = {}
        self.seen: list[Prefix] = [()]

    def run(self, operations: int, check_every: int = 1) -> None:
        """Steps until so many operations are done, then everything is given back and must be free."""
        step = 0
        while self.operations < operations:
            self.step()
            step += 1
            self.compare(full=step % check_every == 0)
        while self.running:
            self.end(self.running[-1], donate=False)
        self.cache.flush()
        self.naive.flush()
        self.compare(full=True)
        assert self.cache.pages.free == self.shape.pages
        assert self.cache.host.snapshots.free == self.shape.snapshots
        assert self.cache.host.pages.free == self.shape.host

    def step(self) -> None:
        r = self.random
        for action in r.choices(
            [self.admit, self.extend, self.preempt, self.peek, self.discard],
            [5, 5, 1, 2, 1],
            k=r.randint(1, 4),
        ):
            action()
        self.copy()
        for s in self.running:
            for i in range(s.written // self.shape.size, len(s.tokens) // self.shape.size):
                self.device[s.pages[i]] = s.tokens[: (i + 1) * self.shape.size]
            s.written = len(s.tokens)
        later: list[Callable[[], None]] = [self.donate, self.take_snapshot, self.finish, self.flush]
        for action in r.choices(later, [4, 6, 4, 0.05], k=r.randint(1, 4)):
            action()

    # Before the rows

    def prompt(self) -> Prefix:
        r, s = self.random, self.shape
        start = r.choice(self.seen[-12:])
        start = start[: r.randint(0, len(start))] if r.random() < 0.5 else start
        tail = tuple(r.choices(range(s.alphabet), k=r.randint(1, 3 * s.size)))
        return (start + tail)[: s.longest] if r.random() < 0.8 else start or tail

    def admit(self) -> None:
        self.operations += 1
        tokens = self.prompt()
        self.seen.append(tokens)
        count = len(tokens) // self.shape.size + 1
        limit = resume_limit(len(tokens), self.shape.size)
        expected, hit = self.naive.match(tokens, limit), self.cache.match(encode(tokens), limit)
        self.same_hit(hit, expected)
        spare = self.random.choice([0, 0, 1, 3])
        got = self.cache.admit(encode(tokens), limit, count, spare)
        twin = self.naive.admit(tokens, limit, count, spare)
        assert (got is None) == (twin is None), (got, twin)
        if got is None or twin is None:
            self.counts["refused"] += 1
            return
        assert got.hit == hit and hit.length <= limit < len(tokens)
        self.pair(got.pages[: hit.device], twin[0][: hit.device])
        self.meet(got.pages[hit.device :], twin[0][hit.device :])
        restore = (hit.length, hit.snapshot, twin[1]) if twin[1] else None
        self.running.append(Running(tokens, hit.length, got.pages, twin[0], restore))
        self.counts["hit" if hit.length else "miss"] += 1
        self.counts["promoted"] += hit.length // self.shape.size - hit.device
        self.counts["deeper"] += hit.divergence > hit.length

    def same_hit(self, hit: object, expected: tuple[list[Prefix], int, int]) -> None:
        length, device, divergence = len(expected[0]) * self.shape.size, expected[1], expected[2]
        found = (getattr(hit, "length"), getattr(hit, "device"), getattr(hit, "divergence"))  # noqa: B009
        assert found == (length, device, divergence), (hit, expected)

    def peek(self) -> None:
        self.operations += 1
        tokens = self.prompt()
        limit = self.random.randint(0, len(tokens)) // self.shape.size * self.shape.size
        self.same_hit(self.cache.match(encode(tokens), limit), self.naive.match(tokens, limit))

    def extend(self) -> None:
        if not self.running:
            return
        self.operations += 1
        s = self.random.choice(self.running)
        more = self.random.randint(1, 2 * self.shape.size)
        missing = (len(s.tokens) + more) // self.shape.size + 1 - len(s.pages)
        got, twins = self.cache.reserve(missing), self.naive.reserve(missing)
        assert (got is None) == (twins is None), (got, twins)
        if got is None or twins is None:
            self.counts["no room"] += 1
            return
        self.meet(got, twins)
        s.pages, s.twins = s.pages + got, s.twins + twins
        s.tokens += tuple(self.random.choices(range(self.shape.alphabet), k=more))

    def preempt(self) -> None:
        if self.running:
            self.end(self.running[-1], donate=True)

    def discard(self) -> None:
        """Also while the snapshot is about to be restored."""
        if not self.running:
            return
        self.operations += 1
        tokens = self.random.choice(self.running).tokens
        length = self.random.randint(0, len(tokens) // self.shape.size) * self.shape.size
        self.counts["discarded"] -= self.cache.host.snapshots.free
        self.cache.discard(encode(tokens), length)
        self.naive.discard(tokens, length)
        self.counts["discarded"] += self.cache.host.snapshots.free

    def pair(self, numbers: list[int], twins: list[naive.Page]) -> None:
        assert [self.twin[n] for n in numbers] == twins

    def meet(self, numbers: list[int], twins: list[naive.Page]) -> None:
        self.twin.update(zip(numbers, twins, strict=True))
        for s in self.running:
            assert set(s.pages).isdisjoint(numbers), "a page that is held was handed out"

    # The copies

    def copy(self) -> None:
        for move in self.cache.take_moves():
            if move.to_host:
                self.host[move.host] = self.device[move.device]
            else:
                self.device[move.device] = self.host[move.host]
        for s in self.running:
            if s.restore:
                length, number, twin = s.restore
                assert self.snapshots[number] == s.tokens[:length], "a snapshot of other tokens"
                self.cache.host.snapshots.give([number])
                self.naive.give_snapshot(twin)
                s.restore = None
            for i in range(s.written // self.shape.size):
                expected = s.tokens[: (i + 1) * self.shape.size]
                assert self.device[s.pages[i]] == expected, "a page of other tokens"

    # After the rows

    def donate(self) -> None:
        if self.running:
            self.insert(self.random.choice(self.running))

    def insert(self, s: Running) -> None:
        self.operations += 1
        tokens = s.tokens[: s.written]
        if self.random.random() < 0.3:
            tokens = tokens[: self.random.randint(0, len(tokens))]
        pages = self.random.randint(len(tokens) // self.shape.size, len(s.pages))
        new = self.cache.insert(encode(tokens), s.pages[:pages])
        assert new == self.naive.insert(tokens, s.twins[:pages])
        self.counts["donated"] += new

    def take_snapshot(self) -> None:
        s = self.random.choice(self.running) if self.running else None
        if s is None or s.written < self.shape.size:
            return
        self.operations += 1
        last = s.written // self.shape.size
        length = self.random.choice([last, self.random.randint(1, last)]) * self.shape.size
        number, twin = self.cache.snapshot(encode(s.tokens), length), self.naive.snapshot(s.tokens, length)
        assert (number is None) == (twin is None), (number, twin)
        if number is not None:
            assert all(r.restore is None or r.restore[1] != number for r in self.running)
            self.snapshots[number] = s.tokens[:length]
            self.counts["snapshot"] += 1

    def finish(self) -> None:
        if self.running:
            self.end(self.random.choice(self.running), donate=self.random.random() < 0.8)

    def end(self, s: Running, donate: bool) -> None:
        if donate:
            self.insert(s)
        self.operations += 1
        self.running.remove(s)
        self.cache.pages.give(s.pages)
        self.naive.give(s.twins)
        if s.restore:
            self.cache.host.snapshots.give([s.restore[1]])
            self.naive.give_snapshot(s.restore[2])

    def flush(self) -> None:
        self.operations += 1
        self.cache.flush()
        self.naive.flush()
        self.counts["flush"] += 1

    def compare(self, full: bool) -> None:
        c, n = self.cache, self.naive
        found = (c.pages.free, c.pages.idle, c.host.pages.free, c.host.snapshots.free)
        assert found == (n.free(), n.idle(), n.host_free(), n.snapshots_free())
        if not full:
            return
        c.check([p for s in self.running for p in s.pages], [s.restore[1] for s in self.running if s.restore])
        ways = {s.key: s for s in c.saved()}
        assert set(ways) == {encode(p) for p, e in n.entries.items() if e.snapshot}
        for way in ways.values():
            tokens = self.snapshots[way.snapshot]
            assert encode(tokens) == way.key, "a snapshot of other tokens"
            ends = range(self.shape.size, len(tokens) + 1, self.shape.size)
            for page, end in zip(way.pages, ends, strict=True):
                entry = n.entries[tokens[:end]]
                assert (page < 0) == (entry.page is None)
                assert (self.device[page] if page > 0 else self.host[-page]) == tokens[:end]

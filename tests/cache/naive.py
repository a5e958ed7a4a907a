"""The prefix cache written so plainly that it is obviously right: a dict from each prefix to its page."""

from __future__ import annotations

from dataclasses import dataclass, field

Prefix = tuple[int, ...]


@dataclass(eq=False)
class Page:
    """A device page; `holders` are requests, not the cache."""

    holders: int = 0


@dataclass(eq=False)
class Snapshot:
    holders: int = 0


@dataclass
class Entry:
    """What the cache knows of the prefix that ends with this page; a page of None is on the host."""

    page: Page | None
    used: int = 0
    snapshot: Snapshot | None = None
    snapshot_used: int = 0


@dataclass
class Naive:
    capacity: int
    size: int
    host_capacity: int
    snapshot_capacity: int
    entries: dict[Prefix, Entry] = field(default_factory=dict)
    pages: set[Page] = field(default_factory=set)  # held by requests
    snapshots: set[Snapshot] = field(default_factory=set)  # held by requests
    clock: int = 0
    evicted: int = 0
    demoted: int = 0
    flushed: int = 0  # because idle pages lay above held ones

    # What is there

    def free(self) -> int:
        return self.capacity - len(self.pages | {e.page for e in self.entries.values() if e.page})

    def idle(self) -> int:
        return sum(e.page is not None and not e.page.holders for e in self.entries.values())

    def host_free(self) -> int:
        return self.host_capacity - sum(e.page is None for e in self.entries.values())

    def snapshots_free(self) -> int:
        kept = {e.snapshot for e in self.entries.values() if e.snapshot}
        return self.snapshot_capacity - len(self.snapshots | kept)

    def prefixes(self, tokens: Prefix, limit: int) -> list[Prefix]:
        """Its whole pages up to `limit` that the cache knows, shortest first."""
        found = []
        for end in range(self.size, min(limit, len(tokens)) + 1, self.size):
            if tokens[:end] not in self.entries:
                break
            found.append(tokens[:end])
        return found

    def match(self, tokens: Prefix, limit: int) -> tuple[list[Prefix], int, int]:
        """(prefixes of the hit, of them on the device, divergence)."""
        known = self.prefixes(tokens, limit)
        divergence = len(known) * self.size
        while known and not self.entries[known[-1]].snapshot:
            known.pop()
        return known, sum(self.entries[p].page is not None for p in known), divergence

    # What requests do

    def hold(self, page: Page) -> Page:
        page.holders += 1
        self.pages.add(page)
        return page

    def give(self, pages: list[Page]) -> None:
        for page in pages:
            page.holders -= 1
            if not page.holders:
                self.pages.remove(page)

    def give_snapshot(self, snapshot: Snapshot) -> None:
        snapshot.holders -= 1
        if not snapshot.holders:
            self.snapshots.remove(snapshot)

    def touch(self, prefixes: list[Prefix]) -> None:
        self.clock += 1
        for p in prefixes:
            self.entries[p].used = self.clock

    def admit(
        self, tokens: Prefix, limit: int, count: int, spare: int
    ) -> tuple[list[Page], Snapshot | None] | None:
        hit, _, _ = self.match(tokens, limit)
        held = [self.hold(page) for p in hit if (page := self.entries[p].page)]
        if count - len(held) + spare > self.free() + self.idle():
            self.give(held)
            return None
        self.touch(hit)
        snapshot = None
        if hit:
            last = self.entries[hit[-1]]
            snapshot, last.snapshot_used = last.snapshot, self.clock
            assert snapshot
            snapshot.holders += 1
            self.snapshots.add(snapshot)
        if not self.make_room(count - len(held)):
            self.give(held)
            if snapshot:
                self.give_snapshot(snapshot)
            return None
        for p in hit[len(held) :]:
            page = self.hold(Page())
            held.append(page)
            self.entries[p].page = page
        return held + [self.hold(Page()) for _ in range(count - len(held))], snapshot

    def reserve(self, count: int) -> list[Page] | None:
        if count > self.free() + self.idle():
            return None
        if not self.make_room(count):
            self.flush()
            self.flushed += 1
        return [self.hold(Page()) for _ in range(count)]

    def insert(self, tokens: Prefix, pages: list[Page]) -> int:
        new = 0
        whole = range(self.size, min(len(tokens), len(pages) * self.size) + 1, self.size)
        for end, page in zip(whole, pages, strict=False):
            entry = self.entries.get(tokens[:end])
            if entry is None:
                self.entries[tokens[:end]] = Entry(page)
                new += 1
            elif entry.page is None:
                entry.page = page
        self.touch([tokens[:end] for end in whole])
        return new

    def snapshot(self, tokens: Prefix, length: int) -> Snapshot | None:
        known = self.prefixes(tokens, length)
        if len(known) * self.size < length or any(self.entries[p].page is None for p in known):
            return None
        self.touch(known)
        entry = self.entries[known[-1]]
        if entry.snapshot:
            entry.snapshot_used = self.clock
            return None
        if not self.snapshots_free():
            having = [e for e in self.entries.values() if e.snapshot and not e.snapshot.holders]
            if not having:
                return None
            min(having, key=lambda e: e.snapshot_used).snapshot = None
            self.drop_unneeded_host_pages()
        entry.snapshot, entry.snapshot_used = Snapshot(), self.clock
        return entry.snapshot

    def discard(self, tokens: Prefix, length: int) -> None:
        entry = self.entries.get(tokens[:length])
        if entry and entry.snapshot and not entry.snapshot.holders:
            entry.snapshot = None
            self.drop_unneeded_host_pages()

    def flush(self) -> None:
        self.entries.clear()

    # What goes

    def needed(self) -> set[Prefix]:
        """Prefixes that a snapshot ends or lies below."""
        ends = [p for p, e in self.entries.items() if e.snapshot]
        return {p[:end] for p in ends for end in range(self.size, len(p) + 1, self.size)}

    def make_room(self, count: int) -> bool:
        while self.free() < count:
            above_device = {p[: -self.size] for p, e in self.entries.items() if e.page}
            idle = [
                p for p, e in self.entries.items() if e.page and not e.page.holders and p not in above_device
            ]
            if not idle:
                return False
            needed = self.needed()
            victim = min(idle, key=lambda p: (p in needed, self.entries[p].used))
            self.evict(victim, victim in needed)
        return True

    def evict(self, victim: Prefix, needed: bool) -> None:
        entry = self.entries[victim]
        if not needed:
            del self.entries[victim]
            self.evicted += 1
        elif self.host_free():
            entry.page = None
            self.demoted += 1
        else:
            inner = {p[: -self.size] for p in self.entries}
            cold = [e for p, e in self.entries.items() if e.page is None and p not in inner]
            oldest = min(cold, key=lambda e: e.used, default=entry)
            (oldest if oldest.used <= entry.used else entry).snapshot = None
            self.drop_unneeded_host_pages()

    def drop_unneeded_host_pages(self) -> None:
        needed = self.needed()
        for p in [p for p, e in self.entries.items() if e.page is None and p not in needed]:
            del self.entries[p]

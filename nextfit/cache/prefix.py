"""The prefix cache: what finished and running requests leave behind, for requests that begin the same way.

**What may be shared.** Only full pages of committed tokens enter the tree, and nobody writes to a page of the
tree. With pages of `size` tokens, page i is complete for the trunk once (i+1)*size tokens are committed. A
draft row p depends on token p+1 and lies in slot p+1, so page i holds the draft rows up to (i+1)*size - 2 and
the draft's block keys that end in them: they depend on the same tokens and are complete at the same boundary.
The draft row of a boundary's last token lies in the next page and is computed by whoever knows the next token.

**Where a hit resumes.** Recurrent state cannot be recovered from pages, so a hit resumes at the deepest
snapshot. Snapshots hang on page boundaries, where the rings of open index blocks are empty; what a snapshot
contains is the caller's business, as is copying: numbers and moves are plain values.

**What goes first.** Pages held by a request stay. Of the others, those that no snapshot ends or lies below go
first, then the least recently used, ends before beginnings; useful ones go to the host while it has room for
something used more recently than what it holds. Dropping a snapshot drops the host pages only it needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from nextfit.cache.host import HostTier, Move
from nextfit.cache.order import Order
from nextfit.cache.pages import SharedPool
from nextfit.cache.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Hit:
    """What the cache has of a request: it can resume after `length` tokens from `snapshot` (0: from nothing).

    `divergence` tokens, at least `length` and at most the limit, were asked before; `device` pages of the hit
    need no copy from the host.
    """

    length: int
    snapshot: int
    device: int
    divergence: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A hit, and `pages`: those of the hit first, then fresh ones. The caller holds them and the snapshot."""

    hit: Hit
    pages: list[int]


@dataclass(frozen=True, slots=True)
class Saved:
    """One way to resume: the tokens (encoded) up to a snapshot, their pages (negative: on the host), its number."""

    key: bytes
    pages: list[int]
    snapshot: int


class PrefixCache:
    """Keeps pages and snapshots by the tokens they belong to. Keys are `encode(tokens)`; lengths are in tokens.

    Numbers that it hands out are held by the caller, who gives them back to `pages` and `host.snapshots`.
    """

    def __init__(self, pages: SharedPool, page_size: int, host: HostTier) -> None:
        assert page_size > 0 and page_size % 4 == 0, f"pages have {page_size} tokens, not a multiple of 4"
        self.pages, self.page_size, self.host = pages, page_size, host
        self._moves: list[Move] = []
        self._clock = 0
        self._clear()

    def _clear(self) -> None:
        self._tree = Tree(self.page_size)
        self._snapshots: OrderedDict[int, Node] = OrderedDict()  # least recently used first
        self._warm = Order(lambda node: node.warm > 0)
        self._cold = Order(lambda node: node.warm < len(node.pages))

    def match(self, key: bytes, limit: int) -> Hit:
        """What `admit` would find now. Changes nothing."""
        return self._find(key, limit)[1]

    def admit(self, key: bytes, limit: int, count: int, spare: int = 0) -> Admission | None:
        """`count` device pages for a request, the first of them shared; None if they cannot be had.

        `limit` is `resume_limit` of what must be computed at least, and `count` pages cover more than that;
        `spare` more must be left for others. The caller copies as `take_moves` says, then the snapshot, and
        then gives the snapshot's number back.
        """
        assert limit <= count * self.page_size, f"{count} pages do not hold the {limit} tokens of a hit"
        path, hit = self._find(key, limit)
        shared = [p for node in path for p in node.pages[: node.warm]]
        snapshot = [hit.snapshot] if hit.snapshot else []
        if not self._possible(count - len(shared) + spare + self.pages.idle_among(shared)):
            return None
        self.pages.share(shared)
        self._touch(path)
        for number in snapshot:
            self.host.snapshots.share([number])
            self._snapshots.move_to_end(number)
        if not self._make_room(count - len(shared)):
            self.pages.give(shared)
            self.host.snapshots.give(snapshot)
            return None
        for node in path:
            shared += self._warm_up(node)
        return Admission(hit, shared + self.pages.take(count - len(shared)))

    def reserve(self, count: int) -> list[int] | None:
        """`count` fresh device pages, evicting what is idle; None if there are not so many.

        Idle pages above one that its donor still holds cannot go one by one; if only they are left, all goes.
        """
        if not self._possible(count):
            return None
        if not self._make_room(count):
            self.flush()
        return self.pages.take(count)

    def insert(self, key: bytes, pages: list[int]) -> int:
        """Donate the full pages of committed tokens; the number that the tree did not have.

        `key` may be longer than the pages and the pages may be more than the whole ones in `key`: what is in
        both counts. Where the tree has a page already, that one stays, and the caller's remains the caller's;
        where it has it on the host, the caller's takes its place. The caller still holds all it held.
        """
        count = min(len(pages), len(key) // self._tree.unit)
        path = self._tree.reach(key, count)
        for node in path:
            start = node.end - len(node.pages)
            self._replace_cold(node, pages[start + node.warm : node.end])
        found = path[-1].end if path else 0
        if found < count:
            parent = path[-1] if path else self._tree.root
            self.pages.keep(pages[found:count])
            unit = self._tree.unit
            path.append(self._tree.grow(parent, key[found * unit : count * unit], pages[found:count]))
        self._touch(path)
        return count - found

    def snapshot(self, key: bytes, length: int) -> int | None:
        """A number to copy the state after `length` tokens into, now; the tree holds it, the caller does not.

        None if there is one already, if the pages up to there are not in the tree and on the device, or if all
        snapshots are being restored.
        """
        assert length > 0 and length % self.page_size == 0, f"{length} is not on the page grid"
        count = length // self.page_size
        path, matched = self._tree.walk(key, count)
        if matched < count or path[-1].warm < len(path[-1].pages) - (path[-1].end - count):
            return None
        path = self._tree.reach(key, count)
        self._touch(path)
        node = path[-1]
        if node.snapshot:
            self._snapshots.move_to_end(node.snapshot)
            return None
        pool = self.host.snapshots
        if not pool.free:
            oldest = next((n for s, n in self._snapshots.items() if pool.holders(s) == 1), None)
            if oldest is None:
                return None
            self._forget(oldest)
        taken = pool.take()
        pool.keep(taken)
        pool.give(taken)
        node.snapshot = taken[0]
        self._snapshots[node.snapshot] = node
        self._warm.push(node)
        return node.snapshot

    def discard(self, key: bytes, length: int) -> None:
        """Drop the snapshot after `length` tokens, unless it is gone or being restored."""
        path, matched = self._tree.walk(key, length // self.page_size)
        node = path[-1] if path and path[-1].end == matched == length // self.page_size else None
        if node and node.snapshot and self.host.snapshots.holders(node.snapshot) == 1:
            self._forget(node)

    def take_moves(self) -> list[Move]:
        """Page copies to do in this order, before any page handed out since is written and any snapshot copied."""
        moves, self._moves = self._moves, []
        return moves

    def flush(self) -> int:
        """Forget everything; what requests hold stays theirs. Returns the pages that became free anywhere."""
        before = self.pages.free + self.host.pages.free
        for node in self._tree.nodes():
            self.pages.drop(node.pages[: node.warm])
            self.host.pages.give([-p for p in node.pages[node.warm :]])
        self.host.snapshots.drop(self._snapshots)
        self._clear()
        return self.pages.free + self.host.pages.free - before

    def saved(self) -> list[Saved]:
        """Every way to resume, least recently used first: inserted again in this order, the order is the same."""
        return [
            Saved(b"".join(n.key for n in path), [p for n in path for p in n.pages], number)
            for number, node in self._snapshots.items()
            for path in [_path(node)]
        ]

    def _find(self, key: bytes, limit: int) -> tuple[list[Node], Hit]:
        assert limit % self.page_size == 0, f"{limit} is not on the page grid"
        path, matched = self._tree.walk(key, min(limit, self._most(key)) // self.page_size)
        while path and (path[-1].end > matched or not path[-1].snapshot):
            path.pop()
        length, snapshot = (path[-1].end, path[-1].snapshot) if path else (0, 0)
        device = sum(node.warm for node in path)
        return path, Hit(length * self.page_size, snapshot, device, matched * self.page_size)

    def _most(self, key: bytes) -> int:
        return len(key) // self._tree.unit * self.page_size

    def _touch(self, path: list[Node]) -> None:
        """A parent is always used after its children, so that ends go before beginnings."""
        for node in reversed(path):
            self._clock += 1
            node.used = self._clock
            self._warm.push(node)
            self._cold.push(node)

    def _possible(self, count: int) -> bool:
        return count <= self.pages.free + self.pages.idle

    def _make_room(self, count: int) -> bool:
        """Evict until `count` device pages are free.

        It can fail where `_possible` says yes: below an idle page there may be one that its donor holds.
        """
        held: list[Node] = []
        while self.pages.free < count and (node := self._warm.pop()):
            if node.warm_children or self.pages.holders(node.pages[node.warm - 1]) > 1:
                held.append(node)
            elif not node.useful:
                self._drop_end(node, count - self.pages.free)
            elif self.host.pages.free:
                self._demote_last(node)
            else:
                oldest = self._cold.oldest()
                self._forget(oldest if oldest and oldest.used <= node.used else node)
                self._warm.push(node)
        for node in held:
            self._warm.push(node)
        return self.pages.free >= count

    def _drop_end(self, leaf: Node, most: int) -> None:
        """Drop the last pages of a leaf, at once because the rest is copied, up to one that somebody holds."""
        parent, kept = leaf.parent, len(leaf.pages)
        assert parent is not None
        while kept > max(0, len(leaf.pages) - most) and self.pages.holders(leaf.pages[kept - 1]) == 1:
            kept -= 1
        self.pages.drop(self._tree.cut(leaf, kept))
        self._warm.push(leaf)
        self._warm.push(parent)

    def _demote_last(self, node: Node) -> None:
        """Move the last device page of a run to the host."""
        (host,) = self.host.pages.take()
        page = node.pages[node.warm - 1]
        self._moves.append(Move(page, host, to_host=True))
        node.pages[node.warm - 1] = -host
        self._tree.set_warm(node, node.warm - 1)
        self.pages.drop([page])
        self._warm.push(node)
        self._cold.push(node)

    def _warm_up(self, node: Node) -> list[int]:
        """Move a run's host pages to the device, for a caller that holds them from then on too."""
        cold = [-p for p in node.pages[node.warm :]]
        fresh = self.pages.take(len(cold))
        self._moves += [Move(d, h, to_host=False) for d, h in zip(fresh, cold, strict=True)]
        self._replace_cold(node, fresh)
        self._warm.push(node)
        return fresh

    def _replace_cold(self, node: Node, fresh: list[int]) -> None:
        """Device pages with the same contents in place of a run's host pages."""
        if not fresh:
            return
        self.host.pages.give([-p for p in node.pages[node.warm :]])
        self.pages.keep(fresh)
        node.pages[node.warm :] = fresh
        self._tree.set_warm(node, len(node.pages))

    def _forget(self, node: Node) -> None:
        """Drop the snapshot that ends a run, and the host pages that nothing needs without it."""
        del self._snapshots[node.snapshot]
        self.host.snapshots.drop([node.snapshot])
        node.snapshot = 0
        while not node.useful and node.warm < len(node.pages):
            parent = node.parent
            assert parent is not None
            self.host.pages.give([-p for p in self._tree.cut(node, node.warm)])
            node = node if node.pages else parent
        self._warm.push(node)

    def check(self, pages: Iterable[int] = (), snapshots: Iterable[int] = ()) -> None:
        """Everything adds up; the arguments are what requests hold, each number once per holder."""
        nodes = list(self._tree.nodes())
        self._tree.check()
        self.pages.check(pages, [p for n in nodes for p in n.pages if p > 0])
        self.host.snapshots.check(snapshots, self._snapshots)
        assert {s: n for n in nodes if (s := n.snapshot)} == dict(self._snapshots)
        cold = [-p for n in nodes for p in n.pages if p < 0]
        self.host.pages.check()
        assert len(cold) == len(set(cold)) == self.host.pages.capacity - self.host.pages.free, cold
        assert all(n.useful for n in nodes if n.warm < len(n.pages)), "a host page that no snapshot needs"
        assert self._warm.members() == {n for n in nodes if n.warm}
        assert self._cold.members() == {n for n in nodes if n.warm < len(n.pages)}


def _path(node: Node) -> list[Node]:
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]

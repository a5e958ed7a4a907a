"""A radix tree over pages of tokens: its shape only; what is kept and what goes is decided elsewhere."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

TOKEN_BYTES = array("i").itemsize


def encode(tokens: Sequence[int]) -> bytes:
    """Token ids as the bytes that the tree compares; of a longer sequence, the bytes are longer."""
    return array("i", tokens).tobytes()


class Node:
    """A run of consecutive pages below `parent`, that ends `end` pages from the root.

    A page number above 0 is on the device; below 0 it is the negative of one on the host. Device pages come
    first: the run has `warm` of them, and below a host page everything is on the host.
    """

    __slots__ = ("children", "end", "key", "pages", "parent", "snapshot", "used", "warm", "warm_children")

    def __init__(self, parent: Node | None, key: bytes, pages: list[int], end: int) -> None:
        self.parent, self.key, self.pages, self.end = parent, key, pages, end
        self.children: dict[bytes, Node] = {}  # by the tokens of their first page
        self.snapshot = 0  # of the state at `end`; 0 if there is none
        self.used = 0  # when; greater than that of every child
        self.warm = len(pages)
        self.warm_children = 0

    @property
    def useful(self) -> bool:
        """Whether a hit may need these pages: only what a snapshot ends or lies below can be resumed."""
        return bool(self.children) or self.snapshot != 0


class Tree:
    def __init__(self, page_size: int) -> None:
        self.unit = page_size * TOKEN_BYTES
        self.root = Node(None, b"", [], 0)

    def walk(self, key: bytes, pages: int) -> tuple[list[Node], int]:
        """(nodes along the first `pages` pages of `key`, pages matched); the last node may match in part."""
        path: list[Node] = []
        node, matched, unit = self.root, 0, self.unit
        while matched < pages:
            child = node.children.get(key[matched * unit : (matched + 1) * unit])
            if child is None:
                break
            path.append(child)
            matched += self._common(child.key, key, matched, pages)
            if matched < child.end:
                break
            node = child
        return path, matched

    def _common(self, run: bytes, key: bytes, start: int, stop: int) -> int:
        """Whole pages, at most `stop` - `start`, that `run` shares with `key` from page `start` on."""
        unit = self.unit
        low, high = 0, min(len(run) // unit, stop - start)
        if key.startswith(run[: high * unit], start * unit):
            return high
        while low < high - 1:  # the first `low` pages are equal, the first `high` are not
            middle = (low + high) // 2
            if key.startswith(run[low * unit : middle * unit], (start + low) * unit):
                low = middle
            else:
                high = middle
        return low

    def reach(self, key: bytes, pages: int) -> list[Node]:
        """Nodes along as much of `key` as there is; the last is split so that it ends where they part."""
        path, matched = self.walk(key, pages)
        if path and matched < path[-1].end:
            path[-1] = self._split(path[-1], len(path[-1].pages) - (path[-1].end - matched))
        return path

    def _split(self, lower: Node, count: int) -> Node:
        """A new node with the first `count` pages of `lower`, above it; `lower` keeps its snapshot."""
        assert lower.parent is not None
        cut = count * self.unit
        upper = Node(lower.parent, lower.key[:cut], lower.pages[:count], lower.end - len(lower.pages) + count)
        upper.warm = min(count, lower.warm)
        lower.parent.children[upper.key[: self.unit]] = upper
        lower.parent, lower.key, lower.pages = upper, lower.key[cut:], lower.pages[count:]
        lower.warm -= upper.warm
        upper.children[lower.key[: self.unit]] = lower
        upper.warm_children = int(lower.warm > 0)
        return upper

    def grow(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        """A new leaf of device pages; no child of `parent` begins with the same page of tokens."""
        node = Node(parent, key, pages, parent.end + len(pages))
        parent.children[key[: self.unit]] = node
        parent.warm_children += 1
        return node

    def cut(self, leaf: Node, count: int) -> list[int]:
        """Remove all but the first `count` pages of a leaf, and the leaf if none are left; returns the pages."""
        assert leaf.parent is not None and not leaf.children and not leaf.snapshot
        gone = leaf.pages[count:]
        if not count:
            del leaf.parent.children[leaf.key[: self.unit]]
        leaf.end -= len(gone)
        leaf.key, leaf.pages = leaf.key[: count * self.unit], leaf.pages[:count]
        self.set_warm(leaf, min(leaf.warm, count))
        return gone

    def set_warm(self, node: Node, warm: int) -> None:
        """Say how many pages of `node` are on the device."""
        assert node.parent is not None
        node.parent.warm_children += (warm > 0) - (node.warm > 0)
        node.warm = warm

    def nodes(self) -> Iterator[Node]:
        """Every node with pages, parents first."""
        found = [self.root]
        for node in found:
            found += node.children.values()
        yield from found[1:]

    def check(self) -> None:
        """Links, ends, first pages, what is warm and when it was used agree."""
        for node in (self.root, *self.nodes()):
            assert len(node.key) == len(node.pages) * self.unit
            assert 0 <= node.warm <= len(node.pages)
            assert all((p > 0) == (i < node.warm) and p for i, p in enumerate(node.pages)), node.pages
            assert node.warm_children == sum(c.warm > 0 for c in node.children.values())
            assert not node.warm_children or node.warm == len(node.pages), "a device page below a host page"
            for first, child in node.children.items():
                assert child.parent is node and child.pages and child.key[: self.unit] == first
                assert child.end == node.end + len(child.pages)
                assert node is self.root or child.used < node.used, "a child used after its parent"

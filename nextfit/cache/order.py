"""Which node was used longest ago."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from nextfit.cache.tree import Node

_Entry = tuple[bool, int, Node]


class Order:
    """Nodes that `belongs` accepts: those no hit can need first, then by last use.

    Nodes are pushed whenever their place may have changed; entries that no longer say the truth are skipped.
    """

    def __init__(self, belongs: Callable[[Node], bool]) -> None:
        self._belongs = belongs
        self._heap: list[_Entry] = []
        self._limit = 64

    def push(self, node: Node) -> None:
        if not self._belongs(node):
            return
        heappush(self._heap, (node.useful, node.used, node))
        if len(self._heap) > self._limit:
            self._heap = list({id(e[2]): e for e in self._heap if self._true(e)}.values())
            heapify(self._heap)
            self._limit = 4 * len(self._heap) + 64

    def oldest(self) -> Node | None:
        """The first node, which stays."""
        while self._heap and not self._true(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Node | None:
        """The first node, which the caller pushes back if it still belongs."""
        node = self.oldest()
        while node is not None and self._heap and self._heap[0][2] is node:
            heappop(self._heap)
        return node

    def _true(self, entry: _Entry) -> bool:
        useful, used, node = entry
        return node.used == used and node.useful == useful and self._belongs(node)

    def members(self) -> set[Node]:
        """The nodes that would come out."""
        return {e[2] for e in self._heap if self._true(e)}

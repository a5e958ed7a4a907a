"""Numbered places that several holders share by reference: pages of history, snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class SharedPool:
    """Hands out the numbers 1..capacity and counts their holders; 0 belongs to nobody.

    A number is free again when its last holder gives it back. The prefix tree is a holder like any other, but
    a known one (`keep`, `drop`), so that what only the tree holds can be counted: it may be evicted.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.idle = 0  # held by the tree alone
        self._free = list(range(capacity, 0, -1))
        self._holders = [0] * (capacity + 1)
        self._kept: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def holders(self, number: int) -> int:
        return self._holders[number]

    def idle_among(self, kept: Iterable[int]) -> int:
        """How many of these numbers, which are in the tree, the tree alone holds."""
        return [*map(self._holders.__getitem__, kept)].count(1)

    def take(self, count: int = 1) -> list[int]:
        """`count` numbers with one holder, the caller, who has checked that so many are free."""
        assert count <= len(self._free), f"{count} wanted, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(count)]
        for n in taken:
            self._holders[n] = 1
        return taken

    def share(self, numbers: Iterable[int]) -> None:
        """One more holder each."""
        for n in numbers:
            assert self._holders[n] > 0, f"{n} is free and cannot be shared"
            self.idle -= self._only_kept(n)
            self._holders[n] += 1

    def give(self, numbers: Iterable[int]) -> None:
        """One holder less each; what nobody holds is free."""
        for n in numbers:
            assert self._holders[n] > 0, f"{n} is free and cannot be given back"
            self._holders[n] -= 1
            self.idle += self._only_kept(n)
            if not self._holders[n]:
                self._free.append(n)

    def keep(self, numbers: Iterable[int]) -> None:
        """The tree becomes one more holder; it holds a number at most once."""
        for n in numbers:
            assert n not in self._kept, f"{n} is in the tree already"
            assert self._holders[n] > 0, f"{n} is free and cannot be kept"
            self._kept.add(n)
            self._holders[n] += 1

    def drop(self, numbers: Iterable[int]) -> None:
        """The tree lets go."""
        for n in numbers:
            self.idle -= self._only_kept(n)
            self._kept.remove(n)
            self.give((n,))

    def _only_kept(self, n: int) -> bool:
        return self._holders[n] == 1 and n in self._kept

    def check(self, held: Iterable[int], kept: Iterable[int]) -> None:
        """`held` has every number once per holder outside the tree, `kept` what the tree holds."""
        inside = list(kept)
        assert len(inside) == len(set(inside)), "a number is twice in the tree"
        assert set(inside) == self._kept, (set(inside) ^ self._kept, "kept")
        counted = Counter(held) + Counter(inside)
        assert counted[0] == 0, "somebody holds number 0"
        wrong = {n: (h, counted[n]) for n, h in enumerate(self._holders) if h != counted[n]}
        assert not wrong, f"holders as counted and as found: {wrong}"
        assert all(h >= 0 for h in self._holders)
        assert len(self._free) == len(set(self._free)) and not any(self._holders[n] for n in self._free)
        assert len(self._free) + sum(h > 0 for h in self._holders) == self.capacity, (
            "free and used do not add up"
        )
        assert self.idle == sum(map(self._only_kept, inside)), (self.idle, "idle")

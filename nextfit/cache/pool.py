"""A pool of numbered things: pages, recurrent slots."""

from __future__ import annotations


class Pool:
    """Hands out the numbers 1..capacity; 0 belongs to nobody, so that padding can refer to it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity, 0, -1))
        self._used: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def unused(self) -> set[int]:
        """The numbers that are free."""
        return {*self._free}

    def take(self, count: int = 1) -> list[int]:
        """`count` numbers; the caller has checked that so many are free."""
        taken = [self._free.pop() for _ in range(count)]
        self._used.update(taken)
        return taken

    def give(self, numbers: list[int]) -> None:
        """Take back what `take` handed out."""
        for n in numbers:
            self._used.remove(n)
        self._free.extend(numbers)

    def check(self) -> None:
        """Every number is either free or used, once."""
        assert len(self._free) + len(self._used) == self.capacity, (self._free, self._used)
        assert set(self._free).isdisjoint(self._used) and len(set(self._free)) == len(self._free)

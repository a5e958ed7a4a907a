"""What was planned, what is allocated and what was used of it, owner by owner. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nextfit.memory.plan_values import OWNERS, size

STATUS = Path("/proc/self/status")
# what of an owner was used follows from how many of these were
_USED = {
    "K/V pages": "pages",
    "index keys": "pages",
    "recurrent slots": "slots",
    "commit logs": "slots",
    "snapshot pool": "snapshots",
    "host pages": "host_pages",
    "row arena": "rows",
}
_GROWS = "scratch"
_OTHERS = "modules and context"


@dataclass(frozen=True, slots=True)
class Account:
    """Bytes of one owner. `planned` is None where the engine was given no plan that names the owner."""

    owner: str
    planned: int | None
    allocated: int
    peak: int  # most that was in use at once, of what is divided into pages, slots or rows; else as allocated

    def __str__(self) -> str:
        planned = "not planned" if self.planned is None else f"{size(self.planned)} planned"
        return f"{self.owner}: {planned}, {size(self.allocated)} allocated, {size(self.peak)} at most used"


def resident() -> tuple[int, int]:
    """Bytes of this process that are in memory: its own, and of mapped files; zeros where the system says nothing."""
    try:
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        own, files = (int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))
    except (OSError, KeyError, ValueError):
        return 0, 0
    return own, files


class Ledger:
    """The accounts of one engine, opened when all is allocated and before the first step.

    What operators take inside (`scratch`) is what the process has grown since: freed memory stays with it
    (`keep_freed_memory`), so that is the most they ever had, with what Python took for requests.
    """

    def __init__(self, planned: Mapping[str, int], allocated: Mapping[str, int]) -> None:
        """Owner -> bytes; `planned` may name owners of which nothing is allocated by the engine."""
        self._planned, self._allocated = dict(planned), dict(allocated)
        self._start, files = resident()
        here = sum(n for o, n in allocated.items() if o != "n-gram table")
        self._allocated[_OTHERS] = max(0, self._start + files - here)
        self._most: dict[str, float] = {}

    def note(self, **shares: float) -> None:
        """Shares of `pages`, `slots`, `snapshots`, `host_pages` and `rows` that are in use."""
        most = self._most
        for name, share in shares.items():
            if share > most.get(name, 0):
                most[name] = share

    def accounts(self) -> list[Account]:
        """In the order of the plan's tables."""
        allocated = {**self._allocated, _GROWS: max(0, resident()[0] - self._start)}
        out = []
        for owner in OWNERS:
            if owner in allocated or owner in self._planned:
                n = allocated.get(owner, 0)
                used = self._most.get(_USED[owner], 0.0) if owner in _USED else 1.0
                out.append(Account(owner, self._planned.get(owner), n, round(n * used)))
        return out

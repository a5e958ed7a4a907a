"""What the cache keeps in host memory: snapshots, and pages too cold for the device."""

from __future__ import annotations

from dataclasses import dataclass

from nextfit.cache.pages import SharedPool
from nextfit.cache.pool import Pool


@dataclass(frozen=True, slots=True)
class Move:
    """Copy one page between device page `device` and host page `host`."""

    device: int
    host: int
    to_host: bool


@dataclass(frozen=True, slots=True)
class HostSize:
    """How a byte budget is divided. Start-up allocates it whole, so places are numbered and of fixed size."""

    snapshots: int
    pages: int

    @classmethod
    def within(cls, budget: int, snapshot_bytes: int, page_bytes: int, pages_per_snapshot: int) -> HostSize:
        """The most snapshots with `pages_per_snapshot` cold pages each; what remains becomes pages.

        Without pages (0 per snapshot: there is no colder place than where pages already are) all is snapshots.
        """
        snapshots = budget // (snapshot_bytes + pages_per_snapshot * page_bytes)
        left = budget - snapshots * snapshot_bytes
        return cls(snapshots, left // page_bytes if pages_per_snapshot and snapshots else 0)


class HostTier:
    """The places of one HostSize; page 0 and snapshot 0 belong to nobody."""

    def __init__(self, size: HostSize) -> None:
        self.size = size
        self.snapshots = SharedPool(size.snapshots)
        self.pages = Pool(size.pages)

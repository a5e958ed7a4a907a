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
    """How much there is. Start-up allocates it whole, so places are numbered and of fixed size."""

    snapshots: int
    pages: int


class HostTier:
    """The places of one HostSize; page 0 and snapshot 0 belong to nobody."""

    def __init__(self, size: HostSize) -> None:
        self.size = size
        self.snapshots = SharedPool(size.snapshots)
        self.pages = Pool(size.pages)

"""Bookkeeping of what requests leave behind. Plain values; no torch."""

from nextfit.cache.host import HostSize, HostTier, Move
from nextfit.cache.pages import SharedPool
from nextfit.cache.pool import Pool
from nextfit.cache.positions import resume_limit, snapshot_positions
from nextfit.cache.prefix import Admission, Hit, PrefixCache, Saved
from nextfit.cache.tree import TOKEN_BYTES, encode

__all__ = [
    "TOKEN_BYTES",
    "Admission",
    "Hit",
    "HostSize",
    "HostTier",
    "Move",
    "Pool",
    "PrefixCache",
    "Saved",
    "SharedPool",
    "encode",
    "resume_limit",
    "snapshot_positions",
]

"""Bookkeeping of what requests leave behind. Plain values; no torch."""

from nextfit.cache.pool import Pool

__all__ = ["Pool"]

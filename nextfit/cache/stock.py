"""A prefix cache on paper: what is in it under numbers of its own, to be put down and taken up by another one."""

from __future__ import annotations

from dataclasses import dataclass

from nextfit.cache.prefix import PrefixCache


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to resume: the encoded tokens up to a snapshot, which has the entry's number, and their pages."""

    key: bytes
    pages: list[int]  # by number in the stock, from 0


@dataclass(frozen=True, slots=True)
class Stock:
    """`entries`, least recently used first, and where the cache has their snapshots and pages."""

    entries: list[Entry]
    snapshots: list[int]
    pages: list[int]


def take_stock(cache: PrefixCache) -> Stock:
    """All ways to resume whose pages are on the device."""
    saved = [s for s in cache.saved() if min(s.pages) > 0]
    number = {page: i for i, page in enumerate(dict.fromkeys(p for s in saved for p in s.pages))}
    entries = [Entry(s.key, [number[p] for p in s.pages]) for s in saved]
    return Stock(entries, [s.snapshot for s in saved], list(number))


def take_up(cache: PrefixCache, entries: list[Entry]) -> tuple[dict[int, int], dict[int, int]]:
    """Fill an empty cache with `entries` as far as there is room, the most recently used first.

    Where the caller must copy their snapshots and pages to: number in the stock -> number in the cache.
    """
    kept: list[int] = []
    needed: dict[int, None] = {}
    for i in reversed(range(len(entries))):
        more = dict.fromkeys(entries[i].pages)
        if len(kept) < cache.host.snapshots.free and len(needed | more) <= cache.pages.free:
            kept.append(i)
            needed |= more
    fresh = cache.pages.take(len(needed))
    pages = dict(zip(needed, fresh, strict=True))
    snapshots = {}
    for i in reversed(kept):
        key = entries[i].key
        cache.insert(key, [pages[p] for p in entries[i].pages])
        number = cache.snapshot(key, len(entries[i].pages) * cache.page_size)
        assert number is not None, "two entries end alike"
        snapshots[i] = number
    cache.pages.give(fresh)
    return snapshots, pages

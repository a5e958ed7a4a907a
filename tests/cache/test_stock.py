"""A cache taken down and put up again: the same ways to resume, in the same order of use, as far as there is room."""

from __future__ import annotations

import random

import pytest

from nextfit.cache import HostSize, HostTier, PrefixCache, SharedPool, encode
from nextfit.cache.stock import take_stock, take_up

PAGE = 4


def empty(pages: int = 64, snapshots: int = 12) -> PrefixCache:
    return PrefixCache(SharedPool(pages), PAGE, HostTier(HostSize(snapshots, pages=0)))


def fill(cache: PrefixCache, seed: int) -> None:
    """Prompts that share beginnings, with snapshots here and there."""
    random_ = random.Random(seed)
    for _ in range(12):
        tokens = [random_.randrange(2) for _ in range(PAGE * random_.randrange(1, 6))]
        key = encode(tokens)
        pages = cache.reserve(len(tokens) // PAGE)
        assert pages is not None
        cache.insert(key, pages)
        cache.snapshot(key, PAGE * random_.randint(1, len(pages)))
        cache.pages.give(pages)


@pytest.mark.parametrize("seed", range(20))
def test_put_up_again(seed: int) -> None:
    old, new = empty(), empty()
    fill(old, seed)
    stock = take_stock(old)
    snapshots, pages = take_up(new, stock.entries)
    new.check()
    assert [s.key for s in new.saved()] == [s.key for s in old.saved()]
    # what is copied for a way to resume is what the old cache had for it
    moved = {pages[i]: p for i, p in enumerate(stock.pages)}
    copied = {snapshots[i]: n for i, n in enumerate(stock.snapshots)}
    for a, b in zip(new.saved(), old.saved(), strict=True):
        assert [moved[p] for p in a.pages] == b.pages and copied[a.snapshot] == b.snapshot


@pytest.mark.parametrize(("pages", "snapshots"), [(64, 3), (6, 12), (3, 2), (64, 0), (1, 1)])
def test_the_latest_used_come_first_where_room_is_short(pages: int, snapshots: int) -> None:
    old, new = empty(), empty(pages, snapshots)
    fill(old, 1)
    numbers, places = take_up(new, take_stock(old).entries)
    new.check()
    assert len(places) <= pages and len(numbers) <= snapshots
    ways, kept = old.saved(), [s.key for s in new.saved()]
    assert kept == [s.key for s in ways if s.key in kept]
    held: set[int] = set()
    for way in reversed(ways):
        more = held | set(way.pages)
        fits = snapshots > 0 and len(more) <= pages
        assert (way.key in kept) == fits
        if fits:
            held, snapshots = more, snapshots - 1

"""What the cache answers, on traces short enough to follow by eye."""

from __future__ import annotations

import time

import pytest

from nextfit.cache import (
    HostSize,
    HostTier,
    Move,
    PrefixCache,
    SharedPool,
    encode,
    resume_limit,
    snapshot_positions,
)
from nextfit.cache.tree import Node, Tree

SIZE = 4


def new(pages: int = 20, snapshots: int = 4, host: int = 0, size: int = SIZE) -> PrefixCache:
    return PrefixCache(SharedPool(pages), size, HostTier(HostSize(snapshots, host)))


def serve(cache: PrefixCache, tokens: list[int], *, keep: bool = False) -> tuple[int, list[int]]:
    """One request from admission to end, with the snapshots that prefill leaves; (cached tokens, pages)."""
    size = cache.page_size
    key, limit = encode(tokens), resume_limit(len(tokens), size)
    admission = cache.admit(key, limit, len(tokens) // size + 1)
    assert admission is not None
    hit = admission.hit
    if hit.snapshot:
        cache.host.snapshots.give([hit.snapshot])
    for position in snapshot_positions(hit.length, len(tokens), 8 * size, size, hit.divergence):
        cache.insert(key[: position * 4], admission.pages)
        cache.snapshot(key, position)
    cache.insert(key, admission.pages)
    if not keep:
        cache.pages.give(admission.pages)
        cache.check()
    return hit.length, admission.pages


def test_a_repeat_is_cached() -> None:
    """Also a short one; the last token is always computed."""
    cache = new()
    for length, cached in ((40, 36), (9, 8), (8, 4), (5, 4), (4, 0), (1, 0)):
        tokens = list(range(100 * length, 100 * length + length))
        assert serve(cache, tokens)[0] == 0
        assert serve(cache, tokens)[0] == cached
        cache.flush()


def test_a_longer_prompt_resumes_at_the_end_of_the_shorter() -> None:
    cache = new()
    serve(cache, list(range(18)))
    assert serve(cache, list(range(30)))[0] == 16
    assert serve(cache, list(range(30)))[0] == 28


def test_the_second_that_diverges_leaves_a_snapshot_for_the_third() -> None:
    cache = new()
    system = list(range(10))
    served = [serve(cache, system + [tail] * 9)[0] for tail in (50, 60, 70)]
    assert served == [0, 0, 8]


def test_pages_of_a_hit_are_the_same_pages() -> None:
    cache = new()
    _, first = serve(cache, list(range(20)), keep=True)
    _, second = serve(cache, list(range(20)), keep=True)
    assert first[:4] == second[:4] and set(first[4:]).isdisjoint(second[4:])
    cache.check([*first, *second])
    assert [cache.pages.holders(p) for p in second] == [3, 3, 3, 3, 1, 1]
    cache.pages.give(first)
    assert [cache.pages.holders(p) for p in second] == [2, 2, 2, 2, 1, 1]
    cache.pages.give(second)
    assert cache.pages.idle == 5 and cache.pages.free == 15
    assert cache.flush() == 5


def test_two_who_computed_the_same_keep_their_own_pages() -> None:
    cache = new()
    key = encode(range(8))
    mine, yours = cache.reserve(2), cache.reserve(2)
    assert mine and yours
    assert cache.insert(key, mine) == 2 and cache.insert(key, yours) == 0
    cache.check([*mine, *yours])
    cache.pages.give(mine)
    cache.pages.give(yours)
    assert cache.pages.idle == 2 and cache.pages.free == 18


def test_what_no_snapshot_needs_goes_first_then_the_least_recently_used() -> None:
    cache = new(pages=12)
    old, young = list(range(8)) + [0], list(range(20, 28)) + [0]
    serve(cache, old)
    serve(cache, young)
    serve(cache, old)
    key = encode(range(40, 48))
    bare = cache.reserve(2)
    assert bare is not None
    cache.insert(key, bare)
    cache.pages.give(bare)
    lengths = []
    for want in (6, 7, 8, 9, 10, 11, 12):
        taken = cache.reserve(want)
        assert taken is not None
        cache.pages.give(taken)
        found = (cache.match(encode(t), 8) for t in (old, young, list(range(40, 48))))
        lengths.append([(h.length, h.divergence) for h in found])
    assert lengths == [
        [(8, 8), (8, 8), (0, 8)],
        [(8, 8), (8, 8), (0, 4)],
        [(8, 8), (8, 8), (0, 0)],
        [(8, 8), (0, 4), (0, 0)],
        [(8, 8), (0, 0), (0, 0)],
        [(0, 4), (0, 0), (0, 0)],
        [(0, 0), (0, 0), (0, 0)],
    ]
    assert cache.host.snapshots.free == 4


def test_held_pages_are_not_evicted() -> None:
    cache = new(pages=6)
    _, pages = serve(cache, list(range(16)), keep=True)
    assert cache.pages.free == 1 and cache.reserve(2) is None
    cache.pages.give(pages)
    assert cache.pages.free == 2
    assert cache.reserve(6) is not None


def test_cold_pages_go_to_the_host_and_come_back() -> None:
    cache = new(pages=6, host=2)
    prompt = list(range(9))
    _, pages = serve(cache, prompt)
    busy = cache.reserve(6)
    assert busy is not None
    down = cache.take_moves()
    assert [(m.device, m.to_host) for m in down] == [(pages[1], True), (pages[0], True)]
    assert cache.match(encode(prompt), 8).device == 0
    assert cache.admit(encode(prompt), 8, 3) is None
    cache.pages.give(busy)
    admission = cache.admit(encode(prompt), 8, 3)
    assert admission is not None and admission.hit.length == 8
    up = cache.take_moves()
    assert up == [Move(p, m.host, to_host=False) for p, m in zip(admission.pages, down[::-1], strict=False)]
    cache.check(admission.pages, [admission.hit.snapshot])


def test_a_snapshot_being_restored_is_not_reused() -> None:
    cache = new(snapshots=1)
    serve(cache, list(range(9)))
    admission = cache.admit(encode(range(9)), 8, 3)
    assert admission is not None and admission.hit.snapshot
    pages = cache.reserve(2)
    assert pages is not None
    other = encode(range(50, 58))
    cache.insert(other, pages)
    assert cache.snapshot(other, 8) is None
    cache.host.snapshots.give([admission.hit.snapshot])
    assert cache.snapshot(other, 8) == admission.hit.snapshot
    assert cache.match(encode(range(9)), 8).length == 0


def test_flush_leaves_what_is_in_use() -> None:
    cache = new()
    _, pages = serve(cache, list(range(20)), keep=True)
    admission = cache.admit(encode(range(20)), 16, 6)
    assert admission is not None
    held, snapshot = [*pages, *admission.pages], admission.hit.snapshot
    assert cache.flush() == 0
    cache.check(held, [snapshot])
    assert cache.match(encode(range(20)), 16).divergence == 0
    cache.pages.give(held)
    cache.host.snapshots.give([snapshot])
    cache.check()
    assert (cache.pages.free, cache.host.snapshots.free) == (20, 4)


def test_what_is_saved_can_be_inserted_again_in_order() -> None:
    cache, again = new(), new()
    prompts = [list(range(9)), list(range(13)), list(range(30, 43))]
    for prompt in (*prompts, prompts[0]):
        serve(cache, prompt)
    saved = cache.saved()
    assert [len(s.key) // 4 for s in saved] == [12, 12, 8]
    for way in saved:
        pages = again.reserve(len(way.pages))
        assert pages is not None
        again.insert(way.key, pages)
        assert again.snapshot(way.key, len(way.key) // 4) is not None
        again.pages.give(pages)
    again.check()
    assert [s.key for s in again.saved()] == [s.key for s in saved]
    assert again.pages.idle == cache.pages.idle == 6


def test_positions() -> None:
    assert [resume_limit(n, 16) for n in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 16, 16, 32]
    assert snapshot_positions(0, 100, 32, 16) == (32, 64, 96)
    assert snapshot_positions(0, 96, 32, 16) == (32, 64, 80)
    assert snapshot_positions(48, 100, 32, 16, divergence=80) == (64, 80, 96)
    assert snapshot_positions(96, 100, 32, 16, divergence=96) == ()
    assert snapshot_positions(0, 16, 32, 16) == ()
    for every, divergence in ((24, 0), (0, 0), (32, 8)):
        with pytest.raises(AssertionError, match="grid"):
            snapshot_positions(0, 100, every, 16, divergence)


def test_misuse_is_named() -> None:
    cache = new()
    for wrong in (0, 6):
        with pytest.raises(AssertionError, match="not a multiple of 4"):
            new(size=wrong)
    with pytest.raises(AssertionError, match="6 is not on the page grid"):
        cache.match(b"", 6)
    with pytest.raises(AssertionError, match="21 wanted, 20 free"):
        cache.pages.take(21)
    (page,) = cache.pages.take()
    cache.pages.give([page])
    for wrong_use in (cache.pages.give, cache.pages.share):
        with pytest.raises(AssertionError, match="is free"):
            wrong_use([page])
    with pytest.raises(AssertionError, match="1 pages do not hold the 8 tokens"):
        cache.admit(encode(range(9)), 8, 1)


def test_a_prompt_of_256k_tokens_costs_milliseconds() -> None:
    length, size = 262144, 16
    cache = new(pages=40000, snapshots=64, size=size)
    tokens = [i * 7919 % 248320 for i in range(length)]
    times: dict[str, float] = {}

    def clock(name: str, since: float) -> float:
        times[name] = (time.perf_counter() - since) * 1000
        return time.perf_counter()

    at = time.perf_counter()
    key = encode(tokens)
    at = clock("encode", at)
    pages = cache.reserve(length // size)
    at = clock("reserve", at)
    assert pages is not None
    assert cache.insert(key, pages) == len(pages)
    at = clock("insert", at)
    for position in snapshot_positions(0, length, 8192, size):
        cache.snapshot(key, position)
    at = clock("32 snapshots", at)
    other = key[:-64] + bytes(64)
    at = time.perf_counter()
    hit = cache.match(other, length - size)
    at = clock("match", at)
    assert hit.length == hit.divergence == length - size
    admission = cache.admit(other, length - size, length // size + 1)
    at = clock("admit", at)
    assert admission is not None and admission.hit == hit
    print({name: f"{ms:.2f} ms" for name, ms in times.items()})
    assert times["match"] < 10 and sum(times.values()) < 500


def test_a_long_run_is_evicted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a run is copied, so page by page would take time by the square; held pages end it."""
    cuts: list[int] = []
    plain = Tree.cut

    def cut(self: Tree, leaf: Node, count: int) -> list[int]:
        cuts.append(count)
        return plain(self, leaf, count)

    monkeypatch.setattr(Tree, "cut", cut)
    cache = new(pages=1000, snapshots=0)
    first = cache.reserve(1000)
    assert first is not None
    cache.insert(encode(range(4000)), first)
    cache.pages.give(first[:100] + first[200:])
    assert cache.reserve(700) is not None and cuts == [300]
    assert cache.reserve(100) is not None and cuts == [300, 200]
    cache.check(first[100:200] + [p for p in range(1, 1001) if p not in first[:200]])

"""The cache against the naive model on random traces, and proof that the traces see planted faults."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextfit.cache import Move, PrefixCache, SharedPool
from nextfit.cache.order import Order
from nextfit.cache.tree import Node, Tree
from tests.cache import trace
from tests.cache.trace import Shape, Trace

SHAPES = (
    Shape(),
    Shape(host=0),
    Shape(pages=40, size=8, snapshots=12, host=20, longest=80),
    Shape(pages=12, snapshots=1, host=3),
    Shape(pages=16, snapshots=20, host=40, alphabet=4, longest=32),
)


def test_a_hundred_thousand_operations() -> None:
    started, operations = time.monotonic(), 0
    counts: Counter[str] = Counter()
    for seed in range(20):
        t = Trace(seed, SHAPES[seed % len(SHAPES)])
        t.run(5000, check_every=4)
        operations += t.operations
        n = t.naive
        counts += t.counts + Counter(evicted=n.evicted, demoted=n.demoted, flushed=n.flushed)
    seconds = time.monotonic() - started
    print(f"{operations} operations in {seconds:.1f} s: {dict(counts)}")
    assert operations >= 100_000 and seconds < 60
    covered: tuple[str, ...] = ("discarded", "flushed")
    covered += ("hit", "miss", "promoted", "deeper", "refused", "no room", "flush", "evicted", "demoted")
    assert all(counts[name] >= 20 for name in covered), counts


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.builds(
        Shape,
        pages=st.integers(1, 30),
        size=st.sampled_from([4, 8, 12]),
        snapshots=st.integers(0, 8),
        host=st.integers(0, 12),
        alphabet=st.integers(1, 3),
        longest=st.integers(1, 48),
    ),
)
def test_any_shape(seed: int, shape: Shape) -> None:
    Trace(seed, shape).run(200)


def no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedPool, "share", lambda self, numbers: None)


def snapshot_outlives_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Tree, leaf: Node, count: int) -> list[int]:
        kept, leaf.snapshot = leaf.snapshot, 0
        gone = original(self, leaf, count)
        leaf.snapshot = kept
        return gone

    original = Tree.cut
    monkeypatch.setattr(Tree, "cut", cut)
    monkeypatch.setattr(Node, "useful", property(lambda self: bool(self.children)))


def snapshot_number_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: PrefixCache, node: Node) -> None:
        self.host.snapshots.share([node.snapshot])
        original(self, node)

    original = PrefixCache._forget
    monkeypatch.setattr(PrefixCache, "_forget", forget)


def newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def oldest(self: Order) -> Node | None:
        last = max((e for e in self._heap if self._true(e)), key=lambda e: (not e[0], e[1]), default=None)
        if last:
            self._heap.remove(last)
            self._heap.insert(0, last)
        return last[2] if last else None

    monkeypatch.setattr(Order, "oldest", oldest)


def never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """First in, first out."""

    def touch(self: PrefixCache, path: list[Node]) -> None:
        original(self, [n for n in path if not n.used])

    original = PrefixCache._touch
    monkeypatch.setattr(PrefixCache, "_touch", touch)


def deeper_than_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PrefixCache._find
    monkeypatch.setattr(
        PrefixCache, "_find", lambda self, key, limit: original(self, key, limit + self.page_size)
    )


def resumes_after_the_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "resume_limit", lambda length, size: length // size * size)


def open_page_donated(monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(self: PrefixCache, key: bytes, pages: list[int]) -> int:
        return original(self, key + bytes(-len(key) % self._tree.unit), pages)

    original = PrefixCache.insert
    monkeypatch.setattr(PrefixCache, "insert", insert)


def split_one_page_late(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tree._common
    monkeypatch.setattr(
        Tree,
        "_common",
        lambda self, run, *rest: min(len(run) // self.unit, original(self, run, *rest) + 1),
    )


def held_page_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedPool, "holders", lambda self, number: 1)


def moves_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PrefixCache.take_moves
    monkeypatch.setattr(PrefixCache, "take_moves", lambda self: original(self)[::-1])


def move_back_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_moves(self: PrefixCache) -> list[Move]:
        return [m for m in original(self) if m.to_host]

    original = PrefixCache.take_moves
    monkeypatch.setattr(PrefixCache, "take_moves", take_moves)


def wrong_half_keeps_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(self: Tree, lower: Node, count: int) -> Node:
        upper = original(self, lower, count)
        upper.snapshot, lower.snapshot = lower.snapshot, 0
        return upper

    original = Tree._split
    monkeypatch.setattr(Tree, "_split", split)


def host_pages_outlive_their_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: PrefixCache, node: Node) -> None:
        del self._snapshots[node.snapshot]
        self.host.snapshots.drop([node.snapshot])
        node.snapshot = 0

    monkeypatch.setattr(PrefixCache, "_forget", forget)


def held_snapshot_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def discard(self: PrefixCache, key: bytes, length: int) -> None:
        path, matched = self._tree.walk(key, length // self.page_size)
        if path and path[-1].end == matched == length // self.page_size and path[-1].snapshot:
            self._forget(path[-1])

    monkeypatch.setattr(PrefixCache, "discard", discard)


MUTANTS = (
    held_snapshot_discarded,
    no_share,
    snapshot_outlives_its_page,
    snapshot_number_lost,
    newest_first,
    never_touched,
    deeper_than_limit,
    resumes_after_the_last_token,
    open_page_donated,
    split_one_page_late,
    held_page_evicted,
    moves_out_of_order,
    move_back_forgotten,
    wrong_half_keeps_the_snapshot,
    host_pages_outlive_their_snapshot,
)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda f: f.__name__)
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)) as caught:
        for seed in range(10):
            Trace(seed, SHAPES[seed % len(SHAPES)]).run(3000, check_every=1)
    print(plant.__name__, repr(caught.value)[:300], caught.traceback[-1].name)


def test_traces_need_no_torch() -> None:
    program = (
        "import sys; from tests.cache.trace import Trace; Trace(1).run(500); "
        "import nextfit.engine.scheduler; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False False\n", "")

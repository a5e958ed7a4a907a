"""Planted faults of a prefix cache over recurrent state: the sameness check must catch each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from torch import Tensor

from nextfit.cache import PrefixCache, encode, resume_limit, snapshot_positions
from nextfit.engine import scheduler as scheduler_module
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence
from nextfit.engine.snapshots import Snapshots
from nextfit.model import State, model
from nextfit.model.state import LinearState
from nextfit.ops.batch import Batch
from nextfit.ops.history import History, remember
from nextfit.ops.sparse_attention import RING
from tests.engine.alike import of_kind, turn
from tests.engine.drive import Trace, request, run

Patch = pytest.MonkeyPatch
SHARING = dict(
    sequences=2, prefill_chunk=64, draft=4, adaptive_draft=False, page_size=4, snapshots=16, answer_every=8
)
FIRST, PARTED = of_kind("first", 0)[0], of_kind("parted", 0)
SHARERS = [PARTED[7], *of_kind("again", 0), *of_kind("longer", 0), *PARTED[8:11], PARTED[6]]
STRANGERS = [n for n in range(12) if len(request(n).prompt) > RING][:3]
TRACES = [
    # several on one prefix, going on with different tokens at, before and after its last page, in slots of strangers
    Trace(
        0,
        SHARING | dict(sequences=4),
        dict.fromkeys([*STRANGERS, FIRST], 0) | {n: 12 + i for i, n in enumerate(SHARERS)},
        check_drafts=True,
    ),
    # an answer that is gone on with, snapshots of it being taken inside verified blocks
    Trace(
        0,
        SHARING,
        {of_kind("talk", 0)[0]: 0, turn(0, 1): 14, turn(0, 2): 28},
        {},
        {of_kind("talk", 0)[0]: "right", turn(0, 1): "1"},
        check_drafts=True,
    ),
]


def one_row_off(by: int) -> Callable[[Patch], None]:
    """The state in a snapshot of a prompt has one row more or less than its key."""

    def plant(patch: Patch) -> None:
        plain = Snapshots._save

        def positions(*given: int) -> tuple[int, ...]:
            length = given[1]
            return tuple(p + by for p in snapshot_positions(*given) if given[0] < p + by < length)

        def save(self: Snapshots, s: Sequence, length: int) -> bool:
            return plain(self, s, length if s.replay else length - by)

        patch.setattr(scheduler_module, "snapshot_positions", positions)
        patch.setattr(Snapshots, "_save", save)

    return plant


def without(kept: Callable[[State], list[Tensor]]) -> Callable[[Patch], None]:
    """Some tensors of the recurrent state are not copied."""

    def plant(patch: Patch) -> None:
        plain = State.in_slots

        def tensors(self: State) -> Iterator[Tensor]:
            left_out = {id(t) for t in kept(self)}
            return (t for t in plain(self) if id(t) not in left_out)

        patch.setattr(State, "in_slots", tensors)

    return plant


def linear(state: State) -> list[LinearState]:
    return [x for x in state.layers if isinstance(x, LinearState)]


def not_restored(patch: Patch) -> None:
    def restore(self: Snapshots, rows: list[Rows]) -> None:
        for s in [r.sequence for r in rows if r.sequence.restore]:
            self.cache.host.snapshots.give([s.restore])
            s.restore = 0

    patch.setattr(Snapshots, "restore", restore)


def no_shift(patch: Patch) -> None:
    """The draft's row of the last shared token lies in the shared page."""
    plain = State._attention
    patch.setattr(State, "_attention", lambda self, c, shift: plain(self, c, 0))


def not_behind(patch: Patch) -> None:
    """The draft head never sees the last row of a hit with the new request's next token."""
    plain = Scheduler._admit

    def admit(self: Scheduler, s: Sequence) -> bool:
        found = plain(self, s)
        s.behind = False
        return found

    patch.setattr(Scheduler, "_admit", admit)


def streams_of_an_earlier_row(patch: Patch) -> None:
    def wrong(history: History, batch: Batch, x: Tensor) -> None:
        remember(history, batch, x.roll(1, 0))

    patch.setattr(model, "remember", wrong)


def committed_rows(by: int) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        plain = State.commit_slots
        patch.setattr(
            State, "commit_slots", lambda self, slots, rows: plain(self, slots, (rows + by).clamp(0, 5))
        )

    return plant


def given_back_twice(patch: Patch) -> None:
    plain = Scheduler._release

    def release(self: Scheduler, s: Sequence) -> None:
        self.cache.pages.give(s.pages[: (s.cached or 0) // self.page_size])
        plain(self, s)

    patch.setattr(Scheduler, "_release", release)


def last_page_not_in_the_key(patch: Patch) -> None:
    def key(tokens: list[int]) -> bytes:
        n = resume_limit(len(tokens), 4)
        return encode([*tokens[: max(0, n - 4)], *[0] * min(n, 4), *tokens[n:]])

    patch.setattr(scheduler_module, "encode", key)


def snapshot_not_held(patch: Patch) -> None:
    """Whoever is about to restore a snapshot has no hold on it."""
    plain = PrefixCache.admit

    def admit(self: PrefixCache, *given: object) -> object:
        found = plain(self, *given)  # type: ignore[arg-type]
        if found and found.hit.snapshot:
            self.host.snapshots.give([found.hit.snapshot])
        return found

    patch.setattr(PrefixCache, "admit", admit)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "snapshot one row late": one_row_off(1),
    "snapshot one row early": one_row_off(-1),
    "delta net: matrix not copied": without(lambda s: [x.delta.matrix for x in linear(s)]),
    "delta net: convolution not copied": without(lambda s: [x.conv.tail for x in linear(s)]),
    "n-gram: convolution not copied": without(lambda s: [h.tail for h in s.ngram.values()]),
    "n-gram: token history not copied": without(lambda s: [s.tokens.tail]),
    "draft: open block not copied": without(lambda s: [s.draft.ring] if s.draft else []),
    "streams not copied": without(lambda s: [s.streams.tail]),
    "delta net: log not copied": without(lambda s: [x.delta.value for x in linear(s)]),
    "delta net: convolution log not copied": without(lambda s: [x.conv.log for x in linear(s)]),
    "n-gram: convolution log not copied": without(lambda s: [h.log for h in s.ngram.values()]),
    "n-gram: token log not copied": without(lambda s: [s.tokens.log]),
    "streams: log not copied": without(lambda s: [s.streams.log]),
    "slot not restored": not_restored,
    "draft rows not shifted": no_shift,
    "draft row behind the hit left out": not_behind,
    "streams of an earlier row": streams_of_an_earlier_row,
    "one row too many committed": committed_rows(1),
    "one row too few committed": committed_rows(-1),
    "shared pages given back twice": given_back_twice,
    "last page not in the key": last_page_not_in_the_key,
    "snapshot not held while it is restored": snapshot_not_held,
}


def check() -> Counter:
    seen: Counter = Counter()
    for trace in TRACES:
        run(trace, seen)
    return seen


@pytest.fixture(scope="module", autouse=True)
def sound() -> None:
    """Without a fault all is well, and what the faults are about occurs."""
    seen = check()
    wanted = (
        ("hit", "parted"),
        ("hit", "turn"),
        "snapshots replaced",
        "drafts compared after a hit",
    )
    assert all(seen[what] for what in wanted), seen


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_fault_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()

"""Planted faults of the host tier: the sameness check must catch each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from nextfit.cache import Move
from nextfit.engine.host_pages import HostPages
from nextfit.model import State
from tests.engine.alike import of_kind
from tests.engine.drive import LONG, Trace, run

Patch = pytest.MonkeyPatch
FAMILY = [of_kind(kind, 0) for kind in ("first", "again", "parted")]
RETURNING = Trace(
    0,
    dict(sequences=1, draft=3, page_size=4, kv_tokens=1, snapshots=16, host_kv_tokens=400)
    | dict(answer_every=16, adaptive_draft=False),
    dict.fromkeys([FAMILY[0][0], *LONG[:2], FAMILY[1][0], LONG[2], FAMILY[2][8]], 0),
    check_drafts=True,
)


def without(index: int) -> Callable[[Patch], None]:
    """One tensor of the pages is not copied: keys, values, block keys of the trunk, then of the draft head."""

    def plant(patch: Patch) -> None:
        plain = HostPages.__init__

        def make_without(self: HostPages, state: State, memory: torch.Tensor) -> None:
            plain(self, state, memory)
            assert len(self._pairs) == 6
            del self._pairs[index]

        patch.setattr(HostPages, "__init__", make_without)

    return plant


def other_moves(change: Callable[[Move], Move | None]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        plain = HostPages.copy
        patch.setattr(HostPages, "copy", lambda self, moves: plain(self, filter(None, map(change, moves))))

    return plant


def too_late(patch: Patch) -> None:
    """Pages leave after the step that has written on them."""
    plain, late = HostPages.copy, list[Move]()

    def copy(self: HostPages, moves: list[Move]) -> None:
        plain(self, late)
        late[:] = moves

    patch.setattr(HostPages, "copy", copy)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "keys not copied": without(0),
    "values not copied": without(1),
    "block keys not copied": without(2),
    "draft: keys not copied": without(3),
    "draft: values not copied": without(4),
    "draft: block keys not copied": without(5),
    "stale: some pages are not sent": other_moves(lambda m: None if m.to_host and m.host % 4 == 1 else m),
    "stale: some pages do not return": other_moves(
        lambda m: None if not m.to_host and m.host % 4 == 1 else m
    ),
    "the page beside it returns": other_moves(
        lambda m: m if m.to_host else Move(m.device, m.host ^ 1, False)
    ),
    "sent after the step": too_late,
}


@pytest.fixture(scope="module")
def sound() -> None:
    seen: Counter = Counter()
    run(RETURNING, seen)
    assert seen["pages back from the host"] and seen["drafts compared after a hit"], seen


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_fault_is_caught(fault: Callable[[Patch], None], sound: None, monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run(RETURNING, Counter())

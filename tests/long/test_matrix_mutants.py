"""Planted faults, each of two features together: a row of the pairwise matrix must fail for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest
from torch import Tensor

from nextfit.engine import round as round_module
from nextfit.engine import sampler
from nextfit.engine.batch import Span
from nextfit.engine.guide import Guide, Mask
from nextfit.engine.request import Sampled
from nextfit.engine.sampler import Wanted
from nextfit.engine.scheduler import Rows
from nextfit.engine.snapshots import Snapshots
from nextfit.server import chat
from nextfit.server.schemas import SamplingBody
from nextfit.server.worker import Worker
from nextfit.text.events import Arguments, Event
from tests.server.matrix.columns import ROWS
from tests.server.matrix.engines import engines
from tests.server.matrix.rows import check
from tests.support.pairwise import Row

Patch = pytest.MonkeyPatch


def penalties_without_drafts(patch: Patch) -> None:
    plain = sampler._seen

    def seen(w: Wanted, x: Tensor) -> tuple[Tensor, Tensor]:
        return plain(w._replace(following=[], after=0), x)

    patch.setattr(sampler, "_seen", seen)


def no_stop_strings_in_streams(patch: Patch) -> None:
    plain = SamplingBody.__dict__["stop_strings"].fget
    patch.setattr(SamplingBody, "stop_strings", property(lambda s: () if s.stream else plain(s)))


def masks_of_the_first_row_alone(patch: Patch) -> None:
    plain = Guide.masks

    def masks(self: Guide, following: Sequence[int], after: int, rows: int) -> list[Mask | None]:
        return [None if after + i else mask for i, mask in enumerate(plain(self, following, after, rows))]

    patch.setattr(Guide, "masks", masks)


def clients_that_leave_are_served(patch: Patch) -> None:
    patch.setattr(Worker, "cancel", lambda self, request_id: None)


def hits_without_their_state(patch: Patch) -> None:
    def restore(self: Snapshots, rows: list[Rows]) -> None:
        for s in [r.sequence for r in rows if r.sequence.restore]:
            self.cache.host.snapshots.give([s.restore])
            s.restore = 0

    patch.setattr(Snapshots, "restore", restore)


def later_chunks_begin_late(patch: Patch) -> None:
    plain = round_module._span

    def span(r: Rows) -> Span:
        found = plain(r)
        s = r.sequence
        if not r.decode and s.computed > (s.cached or 0):
            found = found._replace(tokens=[*found.tokens[1:], found.tokens[0]])
        return found

    patch.setattr(round_module, "_span", span)


def one_seed_for_all(patch: Patch) -> None:
    plain = sampler._chosen

    def chosen(x: Tensor, group: Sequence[Wanted], settings: sampler._Settings) -> list[int]:
        patch.setattr(sampler, "_signed", lambda seed: group[0].sequence.seed)
        return plain(x, group, settings)

    patch.setattr(sampler, "_chosen", chosen)


def probabilities_of_the_first_row(patch: Patch) -> None:
    plain = sampler.describe

    def describe(raw: Tensor, first: int, tokens: list[int], alternatives: int | None) -> tuple[Sampled, ...]:
        found = [plain(raw, first, [t], alternatives)[0] for t in tokens]
        return tuple(found)

    patch.setattr(round_module, "describe", describe)


def arguments_lost_in_streams(patch: Patch) -> None:
    plain = chat._delta

    def delta(event: Event) -> object:
        return None if isinstance(event, Arguments) and event.text.endswith("}") else plain(event)

    patch.setattr(chat, "_delta", delta)


def choices_mixed_up(patch: Patch) -> None:
    plain = chat._Reply._chunk
    patch.setattr(chat._Reply, "_chunk", lambda self, index, *given, **more: plain(self, 0, *given, **more))


Fault = tuple[Callable[[Patch], None], dict[str, Collection[object]]]
FAULTS: list[Fault] = [  # and what the rows have that should see it
    (penalties_without_drafts, {"penalties": ["on"], "drafts": [4]}),
    (no_stop_strings_in_streams, {"stop": ["on"], "stream": ["streamed"]}),
    (masks_of_the_first_row_alone, {"form": ["json", "regex"], "drafts": [4]}),
    (clients_that_leave_are_served, {"leaves": ["among tokens", "before a token"]}),
    (hits_without_their_state, {"prefix": ["hit"]}),
    (later_chunks_begin_late, {"prefill": ["chunked"]}),
    (one_seed_for_all, {"sampling": ["seeded"], "neighbours": [4]}),
    (probabilities_of_the_first_row, {"logprobs": ["on"], "drafts": [4]}),
    (arguments_lost_in_streams, {"tools": ["auto", "required"], "stream": ["streamed"], "api": ["chat"]}),
    (choices_mixed_up, {"n": [2], "stream": ["streamed"], "api": ["chat"]}),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "where"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_fault_is_caught(
    fault: Callable[[Patch], None], where: dict[str, Collection[object]], monkeypatch: Patch
) -> None:
    rows: list[Row] = [row for row in ROWS if all(row[name] in values for name, values in where.items())]
    assert rows
    fault(monkeypatch)
    with pytest.raises(AssertionError), engines() as made:
        for row in rows:
            check(made, row, Counter())

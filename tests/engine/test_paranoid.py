"""Debug mode: planted faults that change no answer by themselves are caught; without one it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from nextfit.engine.request import Output
from nextfit.engine.scheduler import Scheduler
from nextfit.model import attention, delta_net, model, ngram
from nextfit.ops.batch import Batch
from nextfit.ops.delta_net import DeltaState, gated_delta_rule, mixer
from nextfit.ops.linear import linear
from nextfit.ops.sparse_attention import KVPages, attend
from tests.engine.drive import LONG, PENALISED, Trace, engine, request, run
from tests.engine.test_mutants import history_fault, not_fresh

Patch = pytest.MonkeyPatch
TIGHT = dict(
    sequences=4,
    prefill_chunk=64,
    draft=3,
    page_size=4,
    kv_tokens=1,
    snapshots=2,
    answer_every=16,
    adaptive_draft=False,
)


@pytest.mark.parametrize("number", range(2))
def test_nothing_changes(number: int) -> None:
    """Prefix hits, rejected drafts, evictions, preemption and cancels, in memory full of poison."""
    paranoid = TIGHT | dict(paranoid=True)
    seen: Counter = Counter()
    run(Trace(number, paranoid, dict.fromkeys(LONG, 0), {}, {100: "right", 102: "1"}), seen)
    run(
        Trace(number, paranoid, {5: 0, PENALISED: 0, 301: 2, 303: 9, 305: 20}, {5: 3}, {PENALISED: "2"}), seen
    )
    assert seen["preempted"] and seen["accepted of", 3] and seen["rejected at", 1], seen


def answers(paranoid: bool) -> list[Output]:
    """Of two requests after another in one slot."""
    e = engine(0, draft=2, prefill_chunk=7, adaptive_draft=False, paranoid=paranoid)
    out = []
    for number in (9, PENALISED):
        e.add(request(number))
        while e.has_work():
            out += e.step()
    return out


@pytest.fixture
def unchanged() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    yield
    assert torch.are_deterministic_algorithms_enabled() == before


def delta_fault(patch: Patch) -> None:
    def faulty(state: DeltaState, batch: Batch, *rows: Tensor) -> Tensor:
        return gated_delta_rule(state, not_fresh(batch), *rows)

    patch.setattr(mixer, "gated_delta_rule", faulty)


def unwritten_row(patch: Patch) -> None:
    """Attention leaves out its last prefill row, which then has what was there before."""

    def faulty(
        query: Tensor, index_query: Tensor, pages: KVPages, batch: Batch, budget: int, ratio: int
    ) -> Tensor:
        right = attend(query, index_query, pages, batch, budget, ratio)
        out = torch.empty_like(right)
        n = len(out) - (batch.decode_sequences == 0)
        out[:n] = right[:n]
        return out

    patch.setattr(attention, "attend", faulty)


def unwritten_output(patch: Patch) -> None:
    """The delta net leaves its last row to what the buffer had before."""
    plain = linear

    def faulty(
        x: Tensor, weight: Tensor, decode_rows: int, space: Tensor, out: Tensor | None = None
    ) -> Tensor:
        if out is None or decode_rows:
            return plain(x, weight, decode_rows, space, out)
        plain(x[:-1], weight, decode_rows, space, out[: len(x) - 1])
        return out

    patch.setattr(delta_net, "linear", faulty)


def read_too_far(patch: Patch) -> None:
    """Attention reads one token more of the history than there is."""
    plain = KVPages.tokens

    def tokens(self: KVPages, table: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
        key, value = plain(self, table, first, end)
        more, _ = plain(self, table, first + 1, end + 1)
        return torch.cat([key[:-1], more[-1:]]), value

    patch.setattr(KVPages, "tokens", tokens)


def lost_page(patch: Patch) -> None:
    """A page is given back twice."""
    plain = Scheduler._release

    def release(self: Scheduler, s: object) -> None:
        pages = list(s.pages)  # type: ignore[attr-defined]
        plain(self, s)  # type: ignore[arg-type]
        self.cache.pages._free.append(pages[0])

    patch.setattr(Scheduler, "_release", release)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "matrix of the slot's last owner": delta_fault,
    "convolution of the slot's last owner": history_fault(mixer, not_fresh),
    "n-gram convolution of the slot's last owner": history_fault(ngram, not_fresh),
    "tokens of the slot's last owner": history_fault(model, not_fresh),
    "a row that is not written": unwritten_row,
    "a row of a buffer that is not written": unwritten_output,
    "a token that is not there": read_too_far,
    "a page given back twice": lost_page,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_fault_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch, unchanged: None) -> None:
    fault(monkeypatch)
    answers(paranoid=False)  # nothing shows
    with pytest.raises((AssertionError, IndexError)):
        answers(paranoid=True)


def test_the_same_answers() -> None:
    assert answers(paranoid=True) == answers(paranoid=False)

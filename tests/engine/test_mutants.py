"""Planted faults of the kinds that engines of this model really had: the sameness check must catch each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nextfit.engine import round as round_module
from nextfit.engine import sampler
from nextfit.engine.scheduler import Scheduler
from nextfit.engine.sequence import Sequence as Running
from nextfit.model import model, ngram
from nextfit.ops.batch import Batch
from nextfit.ops.delta_net import DeltaState, gated_delta_rule, mixer
from nextfit.ops.history import Extended, History, extend
from nextfit.ops.sampling import choose as choose_rows
from nextfit.ops.sparse_attention import KVPages
from tests.engine.drive import LONG, PENALISED, Trace, run

Patch = pytest.MonkeyPatch
TRACES = [
    # slots in turn, chunks that end anywhere, penalties inside verified blocks, all depths of rejection
    Trace(
        0,
        dict(sequences=2, prefill_chunk=23, draft=4, adaptive_draft=False, page_size=4),
        {5: 0, 9: 0, 101: 0, 2: 3, PENALISED: 3},
        {},
        {5: "2", 9: "right", 101: "alternating", 2: "1", PENALISED: "right"},
        check_drafts=True,
    ),
    # preemption
    Trace(
        0,
        dict(sequences=4, prefill_chunk=64, draft=3, adaptive_draft=False, page_size=4, kv_tokens=1),
        dict.fromkeys(LONG, 0),
    ),
]


def without_replay(b: Batch) -> Batch:
    return replace(b, replay=torch.zeros_like(b.replay))


def not_fresh(b: Batch) -> Batch:
    return replace(b, firsts=tuple(f + 64 for f in b.firsts))


def history_fault(module: object, change: Callable[[Batch], Batch]) -> Callable[[Patch], None]:
    def faulty(history: History, batch: Batch, x: Tensor) -> Extended:
        return extend(history, change(batch), x)

    return lambda patch: patch.setattr(module, "extend", faulty)


def delta_fault(change: Callable[[Batch], Batch]) -> Callable[[Patch], None]:
    def faulty(state: DeltaState, batch: Batch, *rows: Tensor) -> Tensor:
        return gated_delta_rule(state, change(batch), *rows)

    return lambda patch: patch.setattr(mixer, "gated_delta_rule", faulty)


def stale_ring(patch: Patch) -> None:
    """Verify rows leave no raw index keys behind."""
    plain = KVPages.pool

    def pool(self: KVPages, batch: Batch, raw: Tensor, rows: Tensor, ratio: int) -> Tensor:
        before = self.ring.clone()
        out = plain(self, batch, raw, rows, ratio)
        if batch.decode_sequences:
            self.ring.copy_(before)
        return out

    patch.setattr(KVPages, "pool", pool)


def unwritten_blocks(patch: Patch) -> None:
    """Blocks that verify rows complete get no key."""
    plain = KVPages.write_blocks

    def write_blocks(self: KVPages, batch: Batch, rows: Tensor, ratio: int, key: Tensor) -> None:
        keep = rows >= batch.decode_rows
        plain(self, batch, rows[keep], ratio, key[keep])

    patch.setattr(KVPages, "write_blocks", write_blocks)


def draft_history_not_written(patch: Patch) -> None:
    """The draft head keeps what it wrote for its guesses, and nothing of the rows that came true."""
    plain = KVPages.write

    def write(self: KVPages, batch: Batch, key: Tensor, value: Tensor) -> None:
        if not (self.shift and batch.decode_sequences and max(batch.lengths) > 1):
            plain(self, batch, key, value)

    patch.setattr(KVPages, "write", write)


def one_too_many(patch: Patch) -> None:
    def verify(choices: Sequence[int], drafts: Sequence[int]) -> list[int]:
        right = next((i for i, d in enumerate(drafts) if choices[i] != d), len(drafts))
        return list(choices[: right + 2])

    patch.setattr(round_module, "verify", verify)


def all_accepted(patch: Patch) -> None:
    patch.setattr(round_module, "verify", lambda choices, drafts: [*drafts, choices[-1]])


def counts_once_per_block(patch: Patch) -> None:
    plain = sampler._seen

    def seen(wanted: sampler.Wanted, x: Tensor) -> tuple[Tensor, Tensor]:
        prompt, counts = plain(wanted, x)
        return prompt, counts[:1].expand_as(counts)

    patch.setattr(sampler, "_seen", seen)


def noise_once_per_block(patch: Patch) -> None:
    def choose(logits: Tensor, positions: Tensor, **settings: object) -> Tensor:
        return choose_rows(logits, positions[:1].expand_as(positions), **settings)  # type: ignore[arg-type]

    patch.setattr(sampler, "choose", choose)


def resumed_half_computed(patch: Patch) -> None:
    plain = Scheduler._admit

    def admit(self: Scheduler, s: Running) -> bool:
        found = plain(self, s)
        s.computed += found and s.generated // 2
        return found

    patch.setattr(Scheduler, "_admit", admit)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "delta net: convolution not committed": history_fault(mixer, without_replay),
    "delta net: matrix not committed": delta_fault(without_replay),
    "n-gram: convolution not committed": history_fault(ngram, without_replay),
    "n-gram: token history not committed": history_fault(model, without_replay),
    "delta net: convolution of the slot's last owner": history_fault(mixer, not_fresh),
    "delta net: matrix of the slot's last owner": delta_fault(not_fresh),
    "n-gram: convolution of the slot's last owner": history_fault(ngram, not_fresh),
    "n-gram: tokens of the slot's last owner": history_fault(model, not_fresh),
    "raw index keys of verify rows lost": stale_ring,
    "block keys of verify rows lost": unwritten_blocks,
    "draft head keeps its guesses": draft_history_not_written,
    "one draft too many accepted": one_too_many,
    "every draft accepted": all_accepted,
    "penalties counted once per block": counts_once_per_block,
    "one noise for a whole block": noise_once_per_block,
    "preempted sequence keeps what it lost": resumed_half_computed,
}


def check() -> None:
    for trace in TRACES:
        run(trace, Counter())


@pytest.fixture(scope="module", autouse=True)
def sound() -> None:
    """Without a fault all is well; the answers to compare with are now in their cache, where no fault reaches."""
    check()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_fault_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()

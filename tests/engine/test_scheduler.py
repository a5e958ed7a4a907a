"""The scheduler under random traffic. Sequences are advanced by hand: no model."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from nextfit.engine.config import EngineConfig
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence
from nextfit.engine.snapshots import Snapshots


def sequence(
    order: int, prompt: int, answer: int, depth: int = 0, tokens: list[int] | None = None
) -> Sequence:
    tokens = list(range(prompt)) if tokens is None else tokens
    request = Request(str(order), list(tokens), SamplingParams())
    return Sequence(request, 0, depth, frozenset(), len(tokens) + answer, order, tokens=list(tokens))


def small(**limits: Any) -> Scheduler:
    values = dict(sequences=2, page_size=4, kv_tokens=1, snapshots=0) | limits
    return Scheduler(EngineConfig(**values))


class Slots:
    """A state that is just the tokens in each recurrent slot: committed ones, and logged ones."""

    device = torch.device("cpu")

    def __init__(self, count: int) -> None:
        self.committed: list[list[int]] = [[-1]] * count
        self.logged: list[list[int]] = [[]] * count

    def copy_slots(self, sources: Tensor, targets: Tensor) -> None:
        for a, b in zip(sources.tolist(), targets.tolist(), strict=True):
            self.committed[b], self.logged[b] = self.committed[a], self.logged[a]

    def commit_slots(self, slots: Tensor, rows: Tensor) -> None:
        for slot, n in zip(slots.tolist(), rows.tolist(), strict=True):
            assert n <= len(self.logged[slot])
            self.committed[slot] = self.committed[slot] + self.logged[slot][:n]

    def compute(self, row: Rows) -> None:
        """What a forward pass does to the slot of a sequence."""
        s = row.sequence
        slot, known = s.slot, (s.tokens + s.drafts)[: s.computed + row.count]
        before = self.committed[slot] + self.logged[slot][: s.replay] if s.computed else []
        assert before == s.tokens[: s.computed], "the state is not that of the tokens"
        self.committed[slot] = before if row.decode else known
        self.logged[slot] = known[s.computed :] if row.decode else []


def advance(row: Rows, rng: random.Random) -> None:
    """What a round does to a sequence."""
    s = row.sequence
    if row.decode:
        count = rng.randint(1, row.count)
        right = s.drafts[: count - 1]
        s.accept([*right, rng.randrange(3)])
        count = min(count, len(s.tokens) - s.computed)
        s.computed, s.replay = s.computed + count, count
    else:
        last = row.last
        s.computed, s.replay = s.computed + row.count, 0
        if last:
            s.accept([rng.randrange(3)])
    s.behind = False
    s.drafts = [rng.randrange(3) for _ in range(s.draft_room())] if s.decoding else []


def check_step(scheduler: Scheduler, step: list[Rows]) -> None:
    scheduler.check()
    decode = [r.decode for r in step]
    assert decode == sorted(decode, reverse=True)
    assert len({id(r.sequence) for r in step}) == len(step)
    assert sum(r.count for r in step if not r.decode) <= scheduler.config.prefill_chunk
    assert [s.order for s in scheduler.waiting] == sorted(s.order for s in scheduler.waiting)
    for r in step:
        s = r.sequence
        assert s in scheduler.running and s not in scheduler.waiting and s.slot > 0
        known = len(s.tokens) + (len(s.drafts) if r.decode else 0)
        assert 0 < r.count <= known - s.computed
        assert r.decode <= s.decoding and (not r.decode or r.count == 1 + len(s.drafts))
        # every row's token slot, one more for the draft head, has a page
        assert len(s.pages) * scheduler.page_size >= s.computed + r.count + 1
        # and no page of the tree is written to
        first = s.computed // scheduler.page_size
        assert not set(s.pages[first:]) & scheduler.cache.pages._kept


def resumable(scheduler: Scheduler, slots: Slots, tokens: list[int]) -> int:
    """Tokens of the longest beginning of `tokens` whose state is in a snapshot now, found by looking at all."""
    kept = [slots.committed[scheduler.config.sequences + n] for n in scheduler.cache._snapshots]
    return max((len(t) for t in kept if t == tokens[: len(t)] and len(t) < len(tokens)), default=0)


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic(seed: int) -> None:
    """Everybody finishes at the limit, whatever is preempted or cancelled on the way; nothing is left held.

    Slots hold what their sequences have computed, and each hit is the longest one there is.
    """
    rng = random.Random(seed)
    context, depth = 64, rng.choice([0, 0, 3, 8])
    config = EngineConfig(
        context=context,
        sequences=rng.choice([1, 2, 5]),
        page_size=rng.choice([4, 8, 16]),
        kv_tokens=rng.choice([None, 64, 100]),
        prefill_chunk=rng.choice([1, 5, 64]),
        draft=depth,
        snapshots=rng.choice([0, 1, 2, 3, 16]),
        snapshot_every=rng.choice([16, 2048]),
        answer_every=rng.choice([1, 9, 16]),
    )
    scheduler = Scheduler(config)
    slots = Slots(config.sequences + config.snapshots + 1)
    snapshots = Snapshots(scheduler, slots)  # type: ignore[arg-type]
    texts = [[rng.randrange(3) for _ in range(context)] for _ in range(2)]
    finished, order, alive = 0, 0, []

    def admit(s: Sequence) -> bool:
        wanted = resumable(scheduler, slots, s.tokens)
        found = Scheduler._admit(scheduler, s)
        assert not found or s.computed == wanted and (s.restore > 0) == (wanted > 0)
        return found

    scheduler._admit = admit  # type: ignore[method-assign]
    for _ in range(4000):
        if order < 12 and rng.random() < 0.2:
            prompt = rng.randint(1, context - 1)
            tokens = texts[order % 2][: rng.randint(0, prompt)]
            tokens += [rng.randrange(3) for _ in range(prompt - len(tokens))]
            alive.append(sequence(order, prompt, rng.randint(1, context - prompt), depth, tokens))
            scheduler.add(alive[-1])
            order += 1
        if alive and rng.random() < 0.02:
            s = alive.pop(rng.randrange(len(alive)))
            scheduler.remove(s)
            finished += 1
        step = scheduler.schedule()
        check_step(scheduler, step)
        assert step or not alive, "nothing scheduled although there is work"
        snapshots.restore(step)
        for r in step:
            slots.compute(r)
            advance(r, rng)
        snapshots.save(step)
        scheduler.check()
        for r in step:
            if r.sequence.finish:
                assert len(r.sequence.tokens) == r.sequence.limit
                alive.remove(r.sequence)
                scheduler.remove(r.sequence)
                finished += 1
        if finished == 12:
            break
    assert finished == 12 and not scheduler.running and not scheduler.waiting
    scheduler.cache.flush()
    scheduler.check()
    assert scheduler.cache.pages.free == config.pages() and scheduler.slots.free == config.sequences


def test_first_come_first_served() -> None:
    scheduler = small(context=100, prefill_chunk=8)
    for i in range(3):
        scheduler.add(sequence(i, 5, 4))
    assert [(r.sequence.order, r.count) for r in scheduler.schedule()] == [(0, 5), (1, 3)]


def test_decode_goes_on_beside_a_long_prompt() -> None:
    scheduler, rng = small(context=100, prefill_chunk=8), random.Random(0)
    scheduler.add(sequence(0, 3, 20))
    advance(scheduler.schedule()[0], rng)
    scheduler.add(sequence(1, 30, 4))
    for _ in range(4):
        step = scheduler.schedule()
        assert [r.decode for r in step] == [True, False]
        for r in step:
            advance(r, rng)


def test_the_youngest_is_preempted_and_resumes_with_its_tokens() -> None:
    scheduler, rng = small(context=26, prefill_chunk=64), random.Random(0)
    old, young = sequence(0, 12, 20), sequence(1, 8, 20)
    for s in (old, young):
        scheduler.add(s)
    while young in scheduler.running or not young.generated:
        for r in scheduler.schedule():
            advance(r, rng)
        if old.finish:
            break
    assert young in scheduler.waiting and not old.finish
    assert young.computed == young.replay == 0 and not young.pages and not young.drafts and young.generated
    kept = list(young.tokens)
    while not old.finish:
        for r in scheduler.schedule():
            advance(r, rng)
    scheduler.remove(old)
    (row,) = scheduler.schedule()
    assert row.sequence is young and not row.decode and row.count == len(kept) and young.tokens == kept


@pytest.mark.parametrize("seed", range(40))
def test_a_preempted_request_does_not_take_back_what_was_needed(seed: int) -> None:
    """Not in the same step, and not while the next rows of the other would send it away again."""
    scheduler, rng, steps = small(context=60, prefill_chunk=64), random.Random(seed), []
    plain = scheduler._preempt

    def preempt(s: Sequence, step: list[Rows]) -> None:
        steps.append(s)
        plain(s, step)

    scheduler._preempt = preempt  # type: ignore[method-assign]
    old, young = sequence(0, 12, 48, depth=8), sequence(1, 12, 48, depth=8)
    for s in (old, young):
        scheduler.add(s)
    while not old.finish:
        step = scheduler.schedule()
        check_step(scheduler, step)
        for r in step:
            advance(r, rng)
    assert steps == [young]


def test_a_request_waits_for_the_last_snapshot_it_can_use() -> None:
    """Also when the prompt that it shares leaves several, and another request does not wait with it."""
    config = EngineConfig(context=64, sequences=3, page_size=4, prefill_chunk=8, snapshot_every=8)
    scheduler, slots, rng = Scheduler(config), Slots(20), random.Random(0)
    snapshots = Snapshots(scheduler, slots)  # type: ignore[arg-type]
    first, same, other = (
        sequence(i, 40, 4, tokens=[*range(40)] if i < 2 else [*range(7, 12)]) for i in range(3)
    )
    for s in (first, same, other):
        scheduler.add(s)
    while not same.slot:
        assert first.computed < 40
        step = scheduler.schedule()
        check_step(scheduler, step)
        snapshots.restore(step)
        for r in step:
            slots.compute(r)
            advance(r, rng)
        snapshots.save(step)
    assert (first.cached, same.cached, other.cached) == (0, 36, 0) and other.generated


def test_one_request_of_the_full_context_always_fits() -> None:
    for context in (1, 4, 17, 256):
        for sequences in (1, 3):
            for page_size in (4, 16):
                config = EngineConfig(context=context, sequences=sequences, page_size=page_size, kv_tokens=1)
                assert config.pages() * page_size >= context + 1

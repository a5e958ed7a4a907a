"""The scheduler under random traffic. Sequences are advanced by hand: no model, no torch."""

from __future__ import annotations

import random

import pytest

from nextfit.engine.config import EngineConfig
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence


def sequence(order: int, prompt: int, answer: int, depth: int = 0) -> Sequence:
    request = Request(str(order), list(range(prompt)), SamplingParams())
    return Sequence(request, 0, depth, frozenset(), prompt + answer, order, tokens=list(range(prompt)))


def advance(row: Rows, rng: random.Random) -> None:
    """What a round does to a sequence."""
    s = row.sequence
    if row.decode:
        count = rng.randint(1, row.count)
        s.computed, s.replay = s.computed + count, count
        s.accept([7] * count)
    else:
        last = row.last
        s.computed, s.replay = s.computed + row.count, 0
        if last:
            s.accept([7])
    s.drafts = [0] * s.draft_room()


def check_step(scheduler: Scheduler, step: list[Rows]) -> None:
    scheduler.check()
    decode = [r.decode for r in step]
    assert decode == sorted(decode, reverse=True)
    assert len({id(r.sequence) for r in step}) == len(step)
    assert sum(r.count for r in step if not r.decode) <= scheduler.prefill_rows
    for r in step:
        s = r.sequence
        assert s in scheduler.running and s not in scheduler.waiting and s.slot > 0
        known = len(s.tokens) + (len(s.drafts) if r.decode else 0)
        assert 0 < r.count <= known - s.computed
        assert r.decode == s.decoding and (not r.decode or r.count == 1 + len(s.drafts))
        # every row's token slot, one more for the draft head, has a page
        assert len(s.pages) * scheduler.page_size >= s.computed + r.count + 1


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic(seed: int) -> None:
    """Everybody finishes at the limit, whatever is preempted or cancelled on the way; nothing is left held."""
    rng = random.Random(seed)
    context, depth = 64, rng.choice([0, 0, 3, 8])
    config = EngineConfig(
        context=context,
        sequences=rng.choice([1, 2, 5]),
        page_size=rng.choice([4, 16]),
        kv_tokens=rng.choice([None, 64, 100]),
        prefill_chunk=rng.choice([1, 5, 64]),
        draft=depth,
    )
    scheduler = Scheduler(config.sequences, config.pages(), config.page_size, config.prefill_chunk)
    finished, order, alive = 0, 0, []
    for _ in range(3000):
        if order < 12 and rng.random() < 0.2:
            prompt = rng.randint(1, context - 1)
            alive.append(sequence(order, prompt, rng.randint(1, context - prompt), depth))
            scheduler.add(alive[-1])
            order += 1
        if alive and rng.random() < 0.02:
            s = alive.pop(rng.randrange(len(alive)))
            scheduler.remove(s)
            finished += 1
        step = scheduler.schedule()
        check_step(scheduler, step)
        assert step or not alive, "nothing scheduled although there is work"
        for r in step:
            advance(r, rng)
            if r.sequence.finish:
                assert len(r.sequence.tokens) == r.sequence.limit
                alive.remove(r.sequence)
                scheduler.remove(r.sequence)
                finished += 1
        if finished == 12:
            break
    assert finished == 12 and not scheduler.running and not scheduler.waiting
    assert scheduler.pages.free == config.pages() and scheduler.slots.free == config.sequences


def test_first_come_first_served() -> None:
    scheduler = Scheduler(slots=2, pages=100, page_size=4, prefill_rows=8)
    for i in range(3):
        scheduler.add(sequence(i, 5, 4))
    assert [(r.sequence.order, r.count) for r in scheduler.schedule()] == [(0, 5), (1, 3)]


def test_decode_goes_on_beside_a_long_prompt() -> None:
    scheduler, rng = Scheduler(slots=2, pages=100, page_size=4, prefill_rows=8), random.Random(0)
    scheduler.add(sequence(0, 3, 20))
    advance(scheduler.schedule()[0], rng)
    scheduler.add(sequence(1, 30, 4))
    for _ in range(4):
        step = scheduler.schedule()
        assert [r.decode for r in step] == [True, False]
        for r in step:
            advance(r, rng)


def test_the_youngest_is_preempted_and_resumes_with_its_tokens() -> None:
    scheduler, rng = Scheduler(slots=2, pages=9, page_size=4, prefill_rows=64), random.Random(0)
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


def test_one_request_of_the_full_context_always_fits() -> None:
    for context in (1, 4, 17, 256):
        for sequences in (1, 3):
            for page_size in (4, 16):
                config = EngineConfig(context=context, sequences=sequences, page_size=page_size, kv_tokens=1)
                assert config.pages() * page_size >= context + 1

"""The scheduler under random traffic. Sequences are advanced by hand: no model."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from nextfit.cache import Hit, PrefixCache, SharedPool
from nextfit.engine.config import EngineConfig
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.engine.scheduler import Rows, Scheduler
from nextfit.engine.sequence import Sequence
from nextfit.engine.snapshots import Snapshots


def sequence(
    order: int, prompt: int, answer: int, depth: int = 0, tokens: list[int] | None = None, priority: int = 0
) -> Sequence:
    tokens = list(range(prompt)) if tokens is None else tokens
    request = Request(str(order), list(tokens), SamplingParams(priority=priority))
    return Sequence(request, 0, depth, frozenset(), len(tokens) + answer, order, tokens=list(tokens))


def small(**limits: Any) -> Scheduler:
    values = dict(sequences=2, page_size=4, kv_tokens=1, snapshots=0, answer_reserve=1) | limits
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
    c = scheduler.config
    most = min(c.prefill_chunk, c.decode_gap) if any(decode) else c.prefill_chunk
    assert sum(r.count for r in step if not r.decode) <= most
    ranks = [(s.request.params.priority, s.order) for s in scheduler.waiting]
    assert ranks == sorted(ranks)
    # only the last of all may stand still, for want of pages
    still = [s for s in scheduler.running if s.decoding and all(r.sequence is not s for r in step)]
    assert all(s is max(scheduler.running, key=lambda r: (r.request.params.priority, r.order)) for s in still)
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
        decode_gap=rng.choice([1, 3, 64]),
        answer_reserve=rng.choice([1, 1, 7, 4096]),
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
            answer, priority = rng.randint(1, context - prompt), rng.choice([0, 0, 0, -1, 5])
            alive.append(sequence(order, prompt, answer, depth, tokens, priority))
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


def taken(step: list[Rows]) -> dict[int, int]:
    """Rows of the step by the number of their sequence."""
    return {r.sequence.order: r.count for r in step}


def test_prompts_share_the_rows_of_a_step() -> None:
    scheduler, rng = small(context=100, sequences=3, kv_tokens=400, prefill_chunk=30), random.Random(0)
    for i, prompt in enumerate((90, 80, 7)):
        scheduler.add(sequence(i, prompt, 4))
    step = scheduler.schedule()
    assert taken(step) == {2: 7, 1: 11, 0: 12}
    for r in step:
        advance(r, rng)
    assert taken(scheduler.schedule()) == {2: 1, 1: 15, 0: 15}


@pytest.mark.parametrize("seed", range(20))
def test_a_short_prompt_is_through_within_its_bound(seed: int) -> None:
    """k prompts of which one has n rows: ceil(n / floor(budget / k)) steps, whatever comes after it."""
    rng = random.Random(seed)
    chunk, k = rng.randint(8, 40), rng.randint(2, 8)
    scheduler = small(context=2000, sequences=k, kv_tokens=20_000, prefill_chunk=chunk, decode_gap=chunk)
    short = rng.randint(1, 60)
    for i in range(k):
        scheduler.add(sequence(i, short if i == 1 else rng.randint(1, 900), 1))
    for _ in range(-(-short // (chunk // k))):
        for r in scheduler.schedule():
            advance(r, rng)
            if r.sequence.finish:
                scheduler.remove(r.sequence)
                scheduler.add(sequence(1000 + rng.randrange(10**6), rng.randint(1, 900), 1))
    assert all(s.order != 1 for s in scheduler.running)


def test_with_fewer_rows_than_prompts_the_first_come_first() -> None:
    scheduler = small(context=100, sequences=3, kv_tokens=400, prefill_chunk=2)
    for i, prompt in enumerate((9, 90, 5)):
        scheduler.add(sequence(i, prompt, 4))
    assert taken(scheduler.schedule()) == {0: 1, 1: 1}


def test_rows_between_two_tokens_are_bounded() -> None:
    """By `decode_gap` while somebody decodes, by `prefill_chunk` while nobody does."""
    scheduler = small(context=500, kv_tokens=1000, prefill_chunk=100, decode_gap=8)
    rng = random.Random(0)
    gaps: list[int] = []
    alone: list[int] = []
    first, second = sequence(0, 150, 30), sequence(1, 150, 30)
    scheduler.add(first)
    scheduler.add(second)
    while not (first.finish and second.finish):
        step = scheduler.schedule()
        prompt = sum(r.count for r in step if not r.decode)
        (gaps if any(r.decode for r in step) else alone).append(prompt)
        for r in step:
            advance(r, rng)
            if r.sequence.finish:
                scheduler.remove(r.sequence)
    assert max(alone) == 100 and max(gaps) <= 8

    scheduler.add(sequence(2, 3, 30))
    for r in scheduler.schedule():
        advance(r, rng)
    scheduler.add(sequence(3, 60, 4))
    assert taken(scheduler.schedule()) == {2: 1, 3: 8}


def test_lower_priorities_wait_and_make_room() -> None:
    """For the rows of a step, for a slot, and for pages; the most urgent is never sent away."""
    scheduler, rng = small(context=100, kv_tokens=200, prefill_chunk=10), random.Random(0)
    for i, priority in enumerate((1, 0, 1)):
        scheduler.add(sequence(i, 20, 30, priority=priority))
    assert taken(scheduler.schedule()) == {1: 10}  # 0 has a slot and waits for rows
    assert [s.order for s in scheduler.waiting] == [2]
    for _ in range(6):
        for r in scheduler.schedule():
            advance(r, rng)
    urgent = sequence(3, 5, 4, priority=-1)
    scheduler.add(urgent)
    assert 3 in taken(scheduler.schedule())
    assert [s.order for s in scheduler.waiting] == [0, 2] and {s.order for s in scheduler.running} == {1, 3}
    scheduler.add(sequence(4, 5, 4, priority=0))
    scheduler.schedule()
    assert [s.order for s in scheduler.waiting] == [4, 0, 2]  # equals do not send each other away
    scheduler.check()


@pytest.mark.parametrize(
    ("reserve", "answers", "together"),
    [
        (1, (80, 80), True),
        (40, (80, 80), True),
        (60, (80, 80), False),
        (4096, (80, 80), False),
        (4096, (30, 30), True),
    ],
)
def test_a_request_is_admitted_with_room_for_its_answer(
    reserve: int, answers: tuple[int, int], together: bool
) -> None:
    """Two prompts of 10 tokens in 100: 40 more each fit, 60 do not, and nobody needs more than its answer."""
    scheduler = small(context=100, kv_tokens=100, answer_reserve=reserve)
    for i, answer in enumerate(answers):
        scheduler.add(sequence(i, 10, answer))
    assert (len(scheduler.schedule()) == 2) == together


@pytest.mark.parametrize(("generated", "together"), [(19, True), (20, False)])
def test_reservations_roll(generated: int, together: bool) -> None:
    """Room for the next 20 tokens is promised again when 20 are used up."""
    scheduler, rng = small(context=100, kv_tokens=100, answer_reserve=20), random.Random(0)
    old, new = sequence(0, 40, 60), sequence(1, 40, 5)
    scheduler.add(old)
    while old.generated < generated:
        for r in scheduler.schedule():
            advance(r, rng)
    scheduler.add(new)
    assert taken(scheduler.schedule()) == ({0: 1, 1: 40} if together else {0: 1})
    while not old.finish:
        for r in scheduler.schedule():
            advance(r, rng)


def test_the_last_token_of_the_full_context() -> None:
    """262,139 tokens in and 5 out at the model's limit, drafts clamped."""
    scheduler = small(context=262_144, sequences=2, page_size=16, answer_reserve=4096)
    rng, s, steps = random.Random(0), sequence(0, 262_139, 5, depth=4), 0
    scheduler.add(s)
    while not s.finish:
        (row,) = scheduler.schedule()
        check_step(scheduler, [row])
        assert s.computed + row.count <= 262_144
        advance(row, rng)
        steps += 1
    assert s.finish == "length" and s.generated == 5 and steps >= 128


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
        for r in step:
            if r.sequence.finish:
                scheduler.remove(r.sequence)
    assert (first.cached, same.cached, other.cached) == (0, 36, 0) and other.generated


def test_a_request_does_not_wait_for_snapshots_of_lower_priorities() -> None:
    """Who leaves them may itself wait for rows, for as long as others come in between."""
    scheduler, rng = (
        small(context=100, sequences=3, kv_tokens=400, prefill_chunk=8, snapshots=4),
        random.Random(0),
    )
    low = sequence(0, 40, 4, priority=5)
    scheduler.add(low)
    advance(scheduler.schedule()[0], rng)
    scheduler.add(sequence(1, 90, 4, tokens=[7] * 90, priority=1))
    assert taken(scheduler.schedule()) == {1: 8}  # nothing for 0
    scheduler.add(sequence(2, 40, 4, priority=0))
    assert taken(scheduler.schedule()) == {2: 8}


def test_who_waits_for_a_snapshot_looks_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads the whole prompt, and many may wait."""
    calls: list[bytes] = []
    plain = PrefixCache.match

    def match(self: PrefixCache, key: bytes, limit: int) -> Hit:
        calls.append(key)
        return plain(self, key, limit)

    monkeypatch.setattr(PrefixCache, "match", match)
    scheduler, rng = small(context=900, kv_tokens=1000, prefill_chunk=8, snapshots=4), random.Random(0)
    first, same = sequence(0, 400, 4), sequence(1, 400, 4)
    for s in (first, same):
        scheduler.add(s)
    for _ in range(20):
        for r in scheduler.schedule():
            advance(r, rng)
    assert same in scheduler.waiting and calls == [same.key]
    scheduler.remove(first)
    assert taken(scheduler.schedule()) == {1: 8}


def test_who_waits_for_pages_shares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing reads the whole list of pages, to give them back in the same step."""
    scheduler = small(context=900, kv_tokens=1000, snapshots=4, answer_reserve=4096)
    scheduler.add(first := sequence(0, 400, 4))
    scheduler.schedule()
    scheduler.cache.insert(first.key, first.pages[:50])
    scheduler.cache.snapshot(first.key, 200)
    scheduler.remove(first)
    scheduler.add(sequence(1, 500, 200, tokens=[7] * 500))
    scheduler.schedule()
    scheduler.add(sequence(2, 400, 300))
    with monkeypatch.context() as m:
        m.delattr(SharedPool, "share")
        scheduler.schedule()
    assert [s.order for s in scheduler.waiting] == [2]
    scheduler.remove(scheduler.running[0])
    assert taken(scheduler.schedule()) == {2: 196}  # from 200 to its own snapshot after 396
    scheduler.check()


def test_one_request_of_the_full_context_always_fits() -> None:
    for context in (1, 4, 17, 256):
        for sequences in (1, 3):
            for page_size in (4, 16):
                config = EngineConfig(context=context, sequences=sequences, page_size=page_size, kv_tokens=1)
                assert config.pages() * page_size >= context + 1

"""Speed features never change a token (design: promise 3): random traffic equals the solo, cold, draft-free run."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.alike import ALIKE, family, of_kind, turn
from tests.engine.drive import LONG, MODELS, PENALISED, Trace, run

WAYS = ["right", "alternating", *map(str, range(8))]
REQUESTS = 12
drawn = partial(  # the same traces on every run; a failing one is printed, not shrunk
    settings,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@st.composite
def traces(draw: st.DrawFn, model: int) -> Trace:
    """Hypothesis chooses the limits, a seed the rest: it would mostly try few requests that all come at once."""
    limits = dict(
        sequences=draw(st.sampled_from([4, 3, 2, 1])),
        prefill_chunk=draw(st.sampled_from([16, 3, 1, 50, 64, 128])),
        draft=draw(st.sampled_from([4, 8, 3, 1, 2, 5, 6, 7, 0])),
        page_size=draw(st.sampled_from([4, 16])),
        kv_tokens=draw(st.sampled_from([1, None])),  # 1: as little as one request of the full context needs
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    numbers = rng.sample(range(REQUESTS), rng.randint(2, 5))
    numbers += [PENALISED] * (rng.random() < 0.3)
    if rng.random() < 0.5:
        numbers += rng.sample(LONG, 3)
    arrivals = {n: rng.choice([0, 0, 2, 9]) for n in numbers}
    cancels = {n: arrivals[n] + rng.randint(1, 15) for n in numbers if rng.random() < 0.3}
    forced = {n: rng.choice(WAYS) for n in numbers if rng.random() < 0.6}
    return Trace(model, limits, arrivals, cancels, forced, check_drafts=rng.random() < 0.3)


def certain(model: int) -> list[Trace]:
    """What must happen whatever Hypothesis finds: preemption, and requests that leave at every stage."""
    small = dict(sequences=4, prefill_chunk=64, draft=3, page_size=4, kv_tokens=1)
    slow = dict(sequences=2, prefill_chunk=3, draft=8, page_size=16)
    return [
        Trace(model, small, dict.fromkeys(LONG, 0), {}, {100: "right", 102: "1"}),
        Trace(model, slow, {7: 0, 5: 0, 9: 0}, {7: 2, 5: 1, 9: 3}),
        Trace(
            model, small, {101: 0, 5: 0, PENALISED: 0}, {101: 5}, {5: "2", PENALISED: "3"}, check_drafts=True
        ),
    ]


@pytest.mark.parametrize("model", range(MODELS))
def test_random_traffic(model: int) -> None:
    seen: Counter = Counter()

    @drawn(max_examples=8)
    @given(traces(model))
    def check(trace: Trace) -> None:
        run(trace, seen)

    check()
    for trace in certain(model):
        run(trace, seen)
    print(dict(seen))
    wanted = ["accepted", "mixed steps", "cancelled in the prompt", "cancelled while decoding", "preempted"]
    wanted += ["drafts compared", "cancelled while waiting"]
    assert all(seen[what] for what in wanted), seen
    assert all(seen["rejected at", depth] for depth in range(4)), seen


@st.composite
def alike_traces(draw: st.DrawFn, model: int) -> Trace:
    """Requests that begin alike come while others that they share with run, wait or are long gone."""
    limits = dict(
        snapshots=draw(st.sampled_from([16, 3, 2, 1, 0])),
        sequences=draw(st.sampled_from([4, 3, 2, 1])),
        prefill_chunk=draw(st.sampled_from([16, 3, 7, 50, 128])),
        draft=draw(st.sampled_from([4, 8, 3, 1, 0])),
        page_size=draw(st.sampled_from([4, 16])),
        kv_tokens=draw(st.sampled_from([1, None, 200])),
        snapshot_every=draw(st.sampled_from([16, 32, 2048])),
        answer_every=draw(st.sampled_from([16, 1])),
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    numbers = rng.sample([n for n in ALIKE if family(n) == model], rng.randint(4, 8))
    numbers += [turn(model, count) for count in (1, 2) if rng.random() < 0.3]
    numbers += [n for n in of_kind("choice", model) if rng.random() < 0.5 and n not in numbers]
    arrivals = {n: rng.choice([0, 0, 1, 4, 12, 30, 60]) for n in numbers}
    cancels = {n: arrivals[n] + rng.randint(1, 12) for n in numbers if rng.random() < 0.2}
    forced = {n: rng.choice(WAYS) for n in numbers if rng.random() < 0.4}
    preempts = {n: range(arrivals[n] + 2, 100, rng.randint(3, 9)) for n in numbers if rng.random() < 0.15}
    return Trace(model, limits, arrivals, cancels, forced, rng.random() < 0.4, preempts)


def certain_alike(model: int) -> list[Trace]:
    """Every kind of hit, with little and with much room."""
    roomy = dict(sequences=2, prefill_chunk=16, draft=4, page_size=4, snapshots=16, answer_every=16)
    tight = dict(
        sequences=4, prefill_chunk=64, draft=3, page_size=4, kv_tokens=1, snapshots=2, answer_every=16
    )
    one = dict(sequences=1, prefill_chunk=128, draft=8, page_size=16, snapshots=16, answer_every=16)
    first, again = of_kind("first", model)[0], of_kind("again", model)
    parted, header = of_kind("parted", model), of_kind("header", model)
    talk, turns = of_kind("talk", model)[0], [turn(model, count) for count in (1, 2)]
    choices = of_kind("choice", model)
    in_turn = [first, *again, *of_kind("longer", model), *parted, *of_kind("short", model), talk, *turns]
    return [
        Trace(model, roomy, {n: 6 * i for i, n in enumerate(in_turn)}, {}, {}, check_drafts=True),
        Trace(
            model, one, dict.fromkeys([first, *again, *parted[::2], talk, turns[0]], 0), {}, {again[0]: "1"}
        ),
        Trace(model, tight, dict.fromkeys([*choices, *header, talk], 0), {choices[1]: 1, header[0]: 3}),
        Trace(model, tight | dict(snapshots=16), dict.fromkeys([*LONG, talk, *turns], 0), {}, {talk: "2"}),
        Trace(model, roomy, dict.fromkeys([*choices, *parted[:3], first, again[0]], 0), {again[0]: 1}),
        Trace(model, roomy | dict(answer_every=4, draft=0), {talk: 0}, preempts={talk: range(4, 60, 3)}),
    ]


@pytest.mark.parametrize("model", range(MODELS))
def test_requests_that_begin_alike(model: int) -> None:
    seen: Counter = Counter()

    @drawn(max_examples=5)
    @given(alike_traces(model))
    def check(trace: Trace) -> None:
        run(trace, seen)

    check()
    for trace in certain_alike(model):
        run(trace, seen)
    print(dict(seen))
    kinds = ("first", "again", "longer", "parted", "short", "header", "choice", "talk", "turn")
    assert all(seen["hit", k] for k in kinds) and seen["missed", "parted"], seen
    wanted = [
        "snapshots evicted",
        "snapshots replaced",
        "pages evicted",
        "awaited",
        "cancelled while awaited",
    ]
    wanted += [
        "preempted",
        "resumed from a snapshot",
        "cancelled in the prompt",
        "drafts compared after a hit",
    ]
    assert all(seen[what] for what in wanted), seen

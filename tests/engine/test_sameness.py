"""Speed features never change a token (design: promise 3): random traffic equals the solo, cold, draft-free run."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.drive import LONG, MODELS, PENALISED, Trace, run

WAYS = ["right", "alternating", *map(str, range(8))]
REQUESTS = 12


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

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
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

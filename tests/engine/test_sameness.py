"""Speed features never change a token (design: promise 3): random traffic equals the solo, cold, draft-free run."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
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


@pytest.mark.parametrize("model", range(MODELS))
def test_random_traffic(model: int) -> None:
    seen: Counter = Counter()

    @settings(
        max_examples=16,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(traces(model))
    def check(trace: Trace) -> None:
        run(trace, seen)

    check()
    print(dict(seen))
    wanted = ["accepted", "mixed steps", "cancelled in the prompt", "cancelled while decoding", "preempted"]
    wanted += ["drafts compared"]
    assert all(seen[what] for what in wanted), seen
    assert all(seen["rejected at", depth] for depth in range(4)), seen


@pytest.mark.parametrize("draft", [0, 3])
def test_preemption(draft: int) -> None:
    """Long answers that do not fit side by side: the younger ones are computed again, to the same tokens."""
    seen: Counter = Counter()
    limits = dict(sequences=4, prefill_chunk=64, draft=draft, page_size=4, kv_tokens=1)
    forced = {100: "right", 102: "1"} if draft else {}
    run(Trace(0, limits, dict.fromkeys(LONG, 0), {}, forced), seen)
    assert seen["preempted"] >= 3

"""Thousands of random traces on many small models: no token differs from the solo, cold, draft-free run.

`pytest -n 2 tests/long/test_sameness.py --models 10` runs 2,000 traces besides the certain ones; the same every time.
A failing one is printed as it can be given to `tests.engine.drive.run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.engine.traces import (
    alike_traces,
    certain,
    certain_alike,
    missing,
    missing_alike,
    run_drawn,
    traces,
)

TRACES = 100  # of each kind for each model
Record = Callable[[str, object], None]


def record(seen: Counter, record_property: Record) -> None:
    counts = {" ".join(map(str, k)) if isinstance(k, tuple) else k: n for k, n in seen.items()}
    record_property("seen", counts)


@pytest.mark.timeout(1800)
def test_random_traffic(model: int, record_property: Record) -> None:
    seen = run_drawn(traces, certain, model, TRACES)
    assert not missing(seen, depths=8), seen
    record(seen, record_property)


@pytest.mark.timeout(1800)
def test_requests_that_begin_alike(model: int, record_property: Record) -> None:
    seen = run_drawn(alike_traces, certain_alike, model, TRACES)
    assert not missing_alike(seen), seen
    record(seen, record_property)

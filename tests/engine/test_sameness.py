"""Speed features never change a token (design: promise 3): random traffic equals the solo, cold, draft-free run.

Few traces of two models; `tests/long/test_sameness.py` runs thousands, of many models.
"""

from __future__ import annotations

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

MODELS = 2


@pytest.mark.parametrize("model", range(MODELS))
def test_random_traffic(model: int) -> None:
    seen = run_drawn(traces, certain, model, 8)
    assert not missing(seen, depths=3), seen


@pytest.mark.parametrize("model", range(MODELS))
def test_requests_that_begin_alike(model: int) -> None:
    seen = run_drawn(alike_traces, certain_alike, model, 5)
    assert not missing_alike(seen), seen

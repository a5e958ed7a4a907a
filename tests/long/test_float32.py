"""The traces in float32: answers may differ from the solo run, but only where two tokens are all but tied.

On models with twins, tokens with all but the same logits, many do.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.drive import TWINS, run
from tests.engine.test_mutants import FAULTS, TRACES, Patch
from tests.engine.traces import alike_traces, certain, certain_alike, rough, run_drawn, traces
from tests.long.test_sameness import Record

PER_MODEL = 20  # traces of each kind


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("twins", [0, TWINS])
def test_differences_are_ties(some_model: int, twins: int, record_property: Record) -> None:
    seen = run_drawn(traces, certain, some_model + twins, PER_MODEL, exact=False)
    seen += run_drawn(alike_traces, certain_alike, some_model + twins, PER_MODEL, exact=False)
    compared, different = seen["answers compared"], seen["answers that differ"]
    assert compared > 8 * PER_MODEL and (different > 0 or not twins), seen
    kind = " of models with twins" if twins else ""
    record_property(
        "seen", {f"float32: answers{kind}": compared, f"float32: of them differ{kind}": different}
    )


FOUND = [
    "delta net: matrix not committed",
    "delta net: convolution of the slot's last owner",
    "n-gram: token history not committed",
    "every draft accepted",
    "penalties counted once per block",
    "one noise for a whole block",
]


@pytest.mark.parametrize("name", FOUND)
def test_a_fault_is_no_tie(name: str, monkeypatch: Patch) -> None:
    for trace in TRACES:
        run(rough(trace), Counter())
    FAULTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        for trace in TRACES:
            run(rough(trace), Counter())

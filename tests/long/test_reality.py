"""Memory of a prefill step at the longest context, in float32 as well."""

from __future__ import annotations

from tests.memory.test_reality import model, prefill_peak


def test_a_prefill_step_in_float32_does_not_grow() -> None:
    m = model("float32")
    assert prefill_peak(m, [65534]) <= 1.01 * prefill_peak(m, [1024])

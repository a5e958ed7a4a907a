"""Which route a call takes, what is said of it, and that nothing needs Triton before it is taken."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nextfit.ops import dispatch
from nextfit.ops.dispatch import COMPILED, Operator, Route, choices, forced
from nextfit.ops.norm import reference, rms_norm
from nextfit.ops.norm import triton as kernels

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    """The norm with one more route, which the norm's package does not have."""
    monkeypatch.setattr(dispatch, "OPERATORS", {})
    monkeypatch.setattr(dispatch, "_said", set())
    return Operator(reference.rms_norm, Route("nothing", formats=("Q4_K",), few=True), Route("triton"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Capability of the card that torch tells of."""
    version = [9, 0]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: tuple(version))
    return version


def reasons(operator: Operator) -> list[str]:
    return [choice.reason for choice in operator.choices()]


def test_a_cpu_takes_the_reference(operator: Operator) -> None:
    assert operator(CPU, torch.float32) is operator(CPU, torch.float32) is reference.rms_norm
    assert reasons(operator) == ["nothing: not for float32; triton: not for cpu"]
    assert [(c.operator, c.rows, c.format, c.route, c.calls) for c in choices()] == [
        ("norm.rms_norm", "any", "float32", "reference", 2)
    ]


def test_a_checked_card_takes_the_kernel(
    operator: Operator, card: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "CHECKED", (90,))
    assert operator(CARD, torch.bfloat16, few=False) is kernels.rms_norm
    assert operator(CARD, torch.float64) is reference.rms_norm
    assert reasons(operator) == [
        "nothing: not for bfloat16",
        "nothing: not for float64; triton: not for float64",
    ]


@pytest.mark.parametrize("version", [(8, 6), (13, 0)])
def test_an_unchecked_card_takes_the_reference_and_it_is_said_once(
    version: tuple[int, int], operator: Operator, card: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    card[:] = version
    for format in (torch.float16, torch.bfloat16):
        assert operator(CARD, format) is reference.rms_norm
    name = f"sm_{10 * version[0] + version[1]}"
    assert [x.endswith(f"triton: not checked on {name}") for x in reasons(operator)] == [True, True]
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1 and name in said[0]


def test_only_cards_that_kernels_are_compiled_for_are_checked() -> None:
    assert set(dispatch.CHECKED) <= set(COMPILED)


def test_a_route_for_few_rows(operator: Operator, card: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that cannot be imported is passed over, and by name."""
    monkeypatch.setattr(dispatch, "CHECKED", (90,))
    assert operator(CARD, "Q4_K", few=False) is reference.rms_norm
    assert operator(CARD, "Q4_K", few=True) is reference.rms_norm
    assert reasons(operator) == [
        "nothing: only for few rows; triton: not for Q4_K",
        "nothing: nextfit.ops.norm.nothing is not installed; triton: not for Q4_K",
    ]


def test_a_forced_route(operator: Operator) -> None:
    x, gain = torch.randn(2, 8), torch.randn(8)
    plain = rms_norm(x, gain, 1e-6)
    with forced("triton"):
        assert operator(CPU, torch.float32) is kernels.rms_norm
        assert operator(CPU, torch.float64) is reference.rms_norm
        assert torch.allclose(rms_norm(x, gain, 1e-6), plain)
    assert operator(CPU, torch.float32) is reference.rms_norm


WITHOUT = """
import sys
sys.modules["triton"] = None
import torch
import nextfit.model
from nextfit.ops import norm
from nextfit.ops.dispatch import choices, forced
with forced("triton"):
    norm.rms_norm(torch.ones(1, 4), torch.ones(4), 1e-6)
    print(choices()[0].route, choices()[0].reason)
assert "nextfit.ops.norm.triton" not in sys.modules
"""


def test_nothing_needs_triton() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("reference triton: triton is not installed\n", "")

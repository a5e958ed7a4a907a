"""The norms' kernels under the interpreter, against their references."""

from __future__ import annotations

import pytest
import torch

from nextfit.ops.norm import reference
from nextfit.ops.norm import triton as kernels
from tests.ops.kernels import FLOATS, ROUNDING, ROWS, close, normal, poisoned, strided

EPS = 1e-6


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("width", "groups"), [(12, 1), (12, 4), (40, 5), (33, 1), (kernels.BLOCK + 1, 1)])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rms_norm(rows: int, width: int, groups: int, dtype: torch.dtype) -> None:
    """Widths that are no power of two, that fill a block, and one that needs a second."""
    x, gain = normal(rows, width, dtype=dtype), normal(width, seed=1)
    wanted = reference.rms_norm(x, gain, EPS, groups)
    for view in (x, strided(x)):
        with poisoned():
            assert close(kernels.rms_norm(view, gain, EPS, groups), wanted, ROUNDING[dtype])


@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_of_heads(rows: int) -> None:
    """The first of two halves of each head, as the query lies beside its gate."""
    x, gain = normal(rows, 3, 2, 10)[:, :, 0], normal(10, seed=1)
    with poisoned():
        assert close(kernels.rms_norm(x, gain, EPS), reference.rms_norm(x, gain, EPS), 1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
@pytest.mark.parametrize("rows", ROWS)
def test_gated_rms_norm(rows: int, activation: str, dtype: torch.dtype) -> None:
    """Three heads a row, so that a program's pairs do not end with a row."""
    x, gate = normal(rows, 3, 10, seed=1, dtype=dtype), normal(rows, 3, 10, seed=2, dtype=dtype)
    weight = normal(10, seed=3)
    wanted = reference.gated_rms_norm(x, gate, weight, EPS, activation)
    for a, b in ((x, gate), (strided(x), strided(gate))):
        with poisoned():
            # three roundings, each of which may fall to the other side
            found = kernels.gated_rms_norm(a, b, weight, EPS, activation)
        assert close(found, wanted, 3 * ROUNDING[dtype])


def test_gated_rms_norm_of_wide_values() -> None:
    """The state's type goes in, the activation type comes out."""
    x, gate, weight = normal(5, 2, 8), normal(5, 2, 8, seed=1, dtype=torch.bfloat16), normal(8, seed=2)
    found = kernels.gated_rms_norm(x, gate, weight, EPS, "sigmoid")
    assert close(
        found, reference.gated_rms_norm(x, gate, weight, EPS, "sigmoid"), 3 * ROUNDING[torch.bfloat16]
    )


@pytest.mark.parametrize("rows", [2, 17, 65])
def test_a_row_does_not_depend_on_its_neighbours(rows: int) -> None:
    x, gate, gain = normal(rows, 3, 10), normal(rows, 3, 10, seed=1), normal(10, seed=2)
    both = (
        lambda a, b: kernels.rms_norm(a, gain, EPS),
        lambda a, b: kernels.gated_rms_norm(a, b, gain, EPS, "silu"),
    )
    for f in both:
        together = f(x, gate)
        for row in (0, rows // 2, rows - 1):
            assert torch.equal(f(x[row : row + 1], gate[row : row + 1])[0], together[row])

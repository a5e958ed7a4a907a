"""Normalisations. All of them compute in float32 (float64 in a float64 model) and round once."""

from __future__ import annotations

from torch import Tensor

from nextfit.ops.dispatch import TRITON, Operator
from nextfit.ops.norm import reference
from nextfit.ops.norm.reference import l2_norm

__all__ = ["gated_rms_norm", "l2_norm", "rms_norm"]

_RMS = Operator(reference.rms_norm, TRITON)
_GATED = Operator(reference.gated_rms_norm, TRITON)


def rms_norm(x: Tensor, gain: Tensor, eps: float, groups: int = 1) -> Tensor:
    """RMSNorm over each of `groups` equal parts of the last axis; `gain` (1 + w) spans the whole axis.

    x [rows, width] or [rows, heads, width] of any strides, gain [width] float32 -> contiguous, shape and dtype of x.
    """
    return _RMS(x.device, x.dtype)(x, gain, eps, groups)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: str) -> Tensor:
    """Norm first, then the gate (spec section 5): x, gate [rows, heads, width], weight [width] float32.

    `activation` is "sigmoid" or "silu". The normed value is rounded to the type of `gate` before the weight, as
    the reference implementation does; so is the result, [rows, heads, width].
    """
    return _GATED(x.device, gate.dtype)(x, gate, weight, eps, activation)

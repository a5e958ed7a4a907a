"""Normalisations. All of them compute in float32 (float64 in a float64 model) and round once."""

from nextfit.ops.norm.reference import gated_rms_norm, l2_norm, rms_norm

__all__ = ["gated_rms_norm", "l2_norm", "rms_norm"]

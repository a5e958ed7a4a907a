"""Noise-coupled sampling: the token is a function of context, settings, seed and position (design: rounds)."""

from nextfit.ops.sampling.noise import gumbel
from nextfit.ops.sampling.reference import choose, penalise, top_logprobs

__all__ = ["choose", "gumbel", "penalise", "top_logprobs"]

"""Routing and the experts' gated MLPs (spec section 6)."""

from nextfit.ops.experts.reference import gated_mlp, mixture, route

__all__ = ["gated_mlp", "mixture", "route"]

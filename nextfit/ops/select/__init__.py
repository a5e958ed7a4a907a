"""Deterministic top-k: highest first, and of equals the lower index (spec section 4.3)."""

from nextfit.ops.select.reference import top_k_ascending

__all__ = ["top_k_ascending"]

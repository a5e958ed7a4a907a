"""Rotary position embedding, half-split pairing over the first `rotary_dim` values (spec section 4.2)."""

from nextfit.ops.rope.reference import rope, rope_table

__all__ = ["rope", "rope_table"]

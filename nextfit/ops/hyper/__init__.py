"""Hyper-connections: read one block input from the residual streams, write one block output back (spec section 2)."""

from nextfit.ops.hyper.reference import read, write

__all__ = ["read", "write"]

"""Hashed n-gram embedding: table rows of each token, and the gate that adds them to the streams (spec section 3)."""

from nextfit.ops.ngram.reference import gate, row_ids

__all__ = ["gate", "row_ids"]

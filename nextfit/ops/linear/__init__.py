"""y = x W^T for a resident weight of any format.

Contract: `linear(x [rows, columns], weight [out, columns], decode_rows) -> [rows, out]` in the dtype of x.
The first `decode_rows` rows are of the decode/verify class, the others of the prefill class.
"""

from nextfit.ops.linear.reference import linear

__all__ = ["linear"]

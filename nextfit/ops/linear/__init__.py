"""y = x W^T for a resident weight of any format.

Contract: `linear(x [rows, columns], weight [out, columns], decode_rows, space, out=None) -> [rows, out]` in the
dtype of x. The first `decode_rows` rows are of the decode/verify class, the others of the prefill class. `space`
holds a tile of a weight while it is widened (`space_bytes`).
"""

from nextfit.ops.linear.reference import TILE, linear

__all__ = ["TILE", "linear"]

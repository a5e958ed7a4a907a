"""y = x W^T for a resident weight of any format."""

from __future__ import annotations

from torch import Tensor

from nextfit.checkpoint.packed import Stack, Weight
from nextfit.ops.classes import classes
from nextfit.ops.compiled import format_of
from nextfit.ops.dispatch import CPU, Operator
from nextfit.ops.linear import reference
from nextfit.ops.linear.reference import TILE

__all__ = ["TILE", "linear"]

_PRODUCT = Operator(reference.product, CPU)


def linear(x: Tensor, weight: Weight, decode_rows: int, space: Tensor, out: Tensor | None = None) -> Tensor:
    """x [rows, columns] times the transpose of `weight` [out, columns] -> [rows, out], dtype of x.

    The first `decode_rows` rows are of the decode/verify class, the others of the prefill class. `space` [bytes] uint8
    takes a tile of the weight while it is widened: the smaller of TILE and its elements, in the type of the product.
    The result is written to `out` where one is given.
    """
    if isinstance(weight, Stack):
        sizes = [p.shape[0] for p in weight.parts]
        out = x.new_empty(len(x), sum(sizes)) if out is None else out
        for part, y in zip(weight.parts, out.split(sizes, dim=1), strict=True):
            linear(x, part, decode_rows, space, y)
        return out
    out = x.new_empty(len(x), weight.shape[0]) if out is None else out
    for decode, some in classes(decode_rows, len(x)):
        _PRODUCT(x.device, format_of(x, weight), decode)(x[some], weight, decode, space, out[some])
    return out

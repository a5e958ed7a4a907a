"""Mixture of experts: routing, the experts' gated MLPs and the shared one (spec section 6)."""

from __future__ import annotations

from torch import Tensor

from nextfit.ops.classes import classes
from nextfit.ops.compiled import format_of
from nextfit.ops.dispatch import CPU, Operator
from nextfit.ops.experts import reference
from nextfit.ops.experts.reference import Experts, gated_mlp, mixture, route

__all__ = ["Experts", "gated_mlp", "layer", "mixture", "route"]

_LAYER = Operator(reference.layer, CPU)


def layer(x: Tensor, projected: Tensor, w: Experts, decode_rows: int, space: Tensor, out: Tensor) -> Tensor:
    """The chosen experts of each row x [rows, hidden] and the shared one, into `out` [rows, hidden], which is returned.

    `projected` [rows, experts + 1 + 2 * shared width] is x after the router, the shared expert's gate, and its gate
    and up projections. The first `decode_rows` rows are of the decode class; `space` as for `linear`.
    """
    form = format_of(x, w.gate_up, w.down, w.shared_down)
    for decode, part in classes(decode_rows, len(x)):
        _LAYER(x.device, form, decode)(x[part], projected[part], w, decode, space, out[part])
    return out

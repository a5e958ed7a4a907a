"""Hyper-connections: read one block input from the residual streams, write one block output back (spec section 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from nextfit.checkpoint.packed import Weight
from nextfit.ops.classes import classes
from nextfit.ops.compiled import format_of
from nextfit.ops.dispatch import CPU, Operator
from nextfit.ops.hyper import reference
from nextfit.ops.hyper.reference import write

__all__ = ["read", "write"]

_READ = Operator(reference.read, CPU)


def read(
    x: Tensor,
    gain: Tensor,
    down: Weight,
    up: Weight,
    rank: int,
    count: int,
    eps: float,
    decode_rows: int,
    space: Tensor,
    out: Tensor,
) -> Tensor:
    """Mix the streams x [rows, count * hidden] into a block input.

    `down` [rank (+ count), count * hidden] holds the low-rank projection and, for a read that is written
    back, the inject rows. Writes the block input to `out` [rows, hidden] and returns the inject factors
    [rows, count] in (0, 2) ([rows, 0] where `down` has no inject rows). The first `decode_rows` rows are of the decode
    class; `space` as for `linear`.
    """
    inject = []
    for decode, part in classes(decode_rows, len(x)):
        route = _READ(x.device, format_of(x, down, up, out), decode)
        inject.append(route(x[part], gain, down, up, rank, count, eps, decode, space, out[part]))
    return inject[0] if len(inject) == 1 else torch.cat(inject)

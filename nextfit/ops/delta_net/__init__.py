"""The gated delta net between its projections, over recurrent slots (spec section 5).

Decode and verify rows run recurrently and are only logged; the next step replays those that were
accepted. Prefill rows run in chunks of 64 anchored at multiples of 64 positions, and are committed.
"""

from __future__ import annotations

from torch import Tensor

from nextfit.ops.batch import Batch
from nextfit.ops.compiled import LANES, format_of
from nextfit.ops.delta_net import mixer
from nextfit.ops.delta_net.mixer import Mixer
from nextfit.ops.delta_net.reference import DeltaState, gated_delta_rule, replayed
from nextfit.ops.dispatch import CPU, Operator
from nextfit.ops.history import History

__all__ = ["DeltaState", "Mixer", "gated_delta_rule", "mix", "replayed"]

_MIX = Operator(mixer.mix, CPU)


def mix(projected: Tensor, w: Mixer, conv: History, delta: DeltaState, batch: Batch) -> Tensor:
    """Convolution, gated delta rule, norm and output gate of projected rows [rows, sum of `w.sizes`].

    Returns [rows, value heads * value dim], and advances the slots of `batch` in `conv` and `delta`.
    """
    out = projected.new_empty(len(projected), w.sizes[1])
    widths = (w.key_dim, w.value_dim, len(w.taps))
    form = format_of(out, conv.tail) if not any(n % LANES for n in widths) else f"{out.dtype}, odd widths"
    for decode, part, one in batch.classes:
        _MIX(out.device, form, decode)(projected[part], w, conv, delta, one, out[part])
    return out

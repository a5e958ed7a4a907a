"""Gated delta rule over recurrent slots (spec section 5).

Decode and verify rows run recurrently and are only logged; the next step replays those that were
accepted. Prefill rows run in chunks of 64 anchored at multiples of 64 positions, and are committed.
"""

from nextfit.ops.delta_net.reference import DeltaState, gated_delta_rule, replayed

__all__ = ["DeltaState", "gated_delta_rule", "replayed"]

"""Log-probabilities of a prompt's own tokens, for requests that ask for them."""

from __future__ import annotations

from torch import Tensor

from nextfit.engine.request import Sampled
from nextfit.engine.sampler import describe
from nextfit.engine.scheduler import Rows
from nextfit.model import Buffers, Model
from nextfit.ops.precision import wide


def score_prompt(
    model: Model, buffers: Buffers, streams: Tensor, rows: Rows, start: int
) -> tuple[Sampled, ...]:
    """The prompt's tokens that follow `rows`, which are rows `start` and on of `streams` [rows, streams * hidden].

    Those that were told before a preemption are left out. Logits are computed for as many rows at a time as
    `buffers` has room for.
    """
    s = rows.sequence
    first, end = max(s.computed, s.scored), min(s.computed + rows.count, s.prompt_length - 1)
    alternatives = s.request.params.prompt_logprobs
    if alternatives is None or first >= end:
        return ()
    told: list[Sampled] = []
    for at in range(first, end, len(buffers.logits)):
        following = s.tokens[at + 1 : min(at + len(buffers.logits), end) + 1]
        here = start + at - s.computed
        logits = model.logits(streams[here : here + len(following)], 0, buffers)
        told += describe(logits.to(wide(logits.dtype)), 0, following, alternatives)
    s.scored = end
    return tuple(told)

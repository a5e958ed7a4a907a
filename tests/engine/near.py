"""Shows that tokens chosen in float32 are those of float64, but for rounding errors: an answer is read, not generated.

The choice is written here again, with the room that an error in every logit gives it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.model import Model
from nextfit.ops.sampling import gumbel
from tests.model.drive import trunk_logits

ROOM = 8  # times the error of one way to compute a logit: two other ways are that far apart, and then some


def check(rough: Model, exact: Model, r: Request, tokens: list[int], ends: tuple[int, ...]) -> None:
    """Each of `tokens` could have been chosen after those before it; `rough` and `exact` have the same weights."""
    whole = [*r.prompt, *tokens[:-1]]
    logits, rounded = (trunk_logits(m, whole)[len(r.prompt) - 1 :].double() for m in (exact, rough))
    error = ROOM * float((logits - rounded).abs().max())
    assert error < 1e-3, f"float32 is off by {error / ROOM}"
    for i, (token, row) in enumerate(zip(tokens, logits, strict=True)):
        allowed = choosable(row, r.params, r.prompt, tokens[:i], ends, error)
        assert token in allowed, (
            f"token {i} of {r.id} is {token}; with errors up to {error}, {allowed} could be"
        )


def choosable(
    logits: Tensor,
    p: SamplingParams,
    prompt: list[int],
    answer: list[int],
    ends: tuple[int, ...],
    error: float,
) -> list[int]:
    """Tokens that can be the choice if every one of logits [vocabulary] may be off by `error`."""
    x = logits.clone()
    for token in {*prompt, *answer}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token in set(answer):
        x[token] -= p.presence_penalty + p.frequency_penalty * answer.count(token)
    for token, bias in p.logit_bias.items():
        x[token] += bias
    if len(answer) < p.min_tokens:
        x[[*p.stop_token_ids, *(() if p.ignore_eos else ends)]] = -torch.inf
    room = 2 * error * max(p.repetition_penalty, 1 / p.repetition_penalty) / (p.temperature or 1)
    if p.temperature == 0:
        return (x >= x.max() - room).nonzero()[:, 0].tolist()
    x = x / p.temperature
    surely, maybe = filtered(x, p, -room), filtered(x, p, room)
    scores = x + gumbel(p.seed or 0, p.choice, torch.tensor(len(prompt) + len(answer)), torch.arange(len(x)))
    best = scores[surely].max() if surely.any() else -math.inf
    return (maybe & (scores >= best - room)).nonzero()[:, 0].tolist()


def filtered(x: Tensor, p: SamplingParams, room: float) -> Tensor:
    """What top-k, top-p and min-p leave, [vocabulary] bool: at most if `room` > 0, at least if it is below."""
    kept = torch.isfinite(x)
    inside = x
    if 0 < p.top_k < len(x):
        cut = x.sort(descending=True).values[p.top_k - 1]
        kept &= x >= cut - room
        inside = torch.full_like(x, -torch.inf).scatter(0, x.argsort(descending=True)[: p.top_k], 0) + x
    probability = inside.softmax(0)
    if p.top_p < 1:
        before = torch.stack([probability[x > value + room].sum() for value in x])
        before -= probability if room < 0 else 0  # a token is not before itself
        kept &= before < p.top_p + 4 * room
    return kept & (x >= x.max() + math.log(p.min_p) - 2 * room) if p.min_p else kept

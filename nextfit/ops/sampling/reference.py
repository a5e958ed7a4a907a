from __future__ import annotations

import math

import torch
from torch import Tensor

from nextfit.ops.sampling.noise import gumbel
from nextfit.ops.select import top_k_ascending

# torch's softmax, exp and log hand even the smallest tensors to all threads and wait for them; exp2 does not.
_LOG2E = math.log2(math.e)
_MANY = 1024  # candidates of each row that are sorted, or get their noise, at once


def penalise(
    logits: Tensor, prompt: Tensor, counts: Tensor, repetition: float, presence: float, frequency: float
) -> Tensor:
    """Penalties of tokens seen so far: logits [rows, vocabulary], prompt [vocabulary] bool, counts [rows, vocabulary].

    `repetition` divides positive and multiplies negative logits of every token of the prompt or the answer;
    `presence` and `frequency` are subtracted for tokens of the answer, once and per occurrence.
    """
    seen = prompt | (counts > 0)
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, scaled, logits)
    times = counts.to(logits.dtype)
    return logits - presence * times.clamp(max=1) - frequency * times


def choose(
    logits: Tensor,
    positions: Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | Tensor,
    choice: int | Tensor,
) -> Tensor:
    """The token of each row, [rows] int64: argmax of filtered logits / temperature + noise.

    logits [rows, vocabulary] in the wide type, penalised and masked (-inf is never chosen); positions [rows]
    of the tokens to be chosen; `seed` and `choice` one for all, or of each row [rows, 1] int64. Temperature 0
    is the argmax. Ties go to the lower id, also at the filters' cuts.
    """
    if temperature == 0:
        return logits.argmax(-1)
    n = logits.shape[1]
    if 0 < top_k < n:
        ids = top_k_ascending(logits, top_k)
    else:
        ids = torch.arange(n, device=logits.device).expand(len(logits), n)
    scores = logits.gather(1, ids) / temperature
    ratio = ((scores - scores.amax(-1, keepdim=True)) * _LOG2E).exp2()  # to the likeliest
    if top_p < 1:
        mass = top_p * ratio.cumsum(-1)[:, -1:]
        if ratio.shape[1] > _MANY:
            likely = top_k_ascending(ratio, _MANY)
            if _needless(ratio.gather(1, likely), mass).any(-1).all():  # and so are all less likely ones
                ids, scores, ratio = ids.gather(1, likely), scores.gather(1, likely), ratio.gather(1, likely)
        scores = scores.masked_fill(_needless(ratio, mass), -torch.inf)
    if min_p > 0:
        scores = scores.masked_fill(ratio < min_p, -torch.inf)
    for score, token in zip(scores.split(_MANY, dim=1), ids.split(_MANY, dim=1), strict=True):
        score += gumbel(seed, choice, positions[:, None], token).to(score.dtype)
    return ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


def _needless(weights: Tensor, mass: Tensor) -> Tensor:
    """Which of weights [rows, n] are behind larger ones that have mass [rows, 1] between them, bool."""
    weights, order = weights.sort(dim=-1, descending=True, stable=True)
    drop = (weights.cumsum(-1) - weights) >= mass
    return torch.zeros_like(drop).scatter(1, order, drop)


def top_logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities under the model itself (before penalties and filters), in the wide type.

    Of `tokens` [rows], and of the k likeliest: ([rows], ids [rows, k], values [rows, k]), the likeliest first.
    """
    logp = logits.log_softmax(-1)
    own = logp.gather(1, tokens[:, None])[:, 0]
    ids = top_k_ascending(logp, k) if k else tokens[:, None][:, :0]
    values, order = logp.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return own, ids.gather(1, order), values

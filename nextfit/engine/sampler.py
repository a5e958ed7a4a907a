"""Choosing tokens for one sequence's rows: its settings, its penalties' counts, its noise."""

from __future__ import annotations

import torch
from torch import Tensor

from nextfit.engine.request import Sampled
from nextfit.engine.sequence import Sequence
from nextfit.ops.precision import wide
from nextfit.ops.sampling import choose, penalise, top_logprobs


def choose_tokens(
    logits: Tensor, s: Sequence, following: list[int], after: int = 0
) -> tuple[list[int], Tensor]:
    """Tokens of consecutive rows: logits [rows, vocabulary], row i after `s.tokens` and following[: after + i].

    Returns the choices and the wide, unmodified logits. Every row is penalised and masked exactly as if the
    tokens before it had come one at a time.
    """
    p = s.request.params
    raw = logits.to(wide(logits.dtype))
    x = raw
    if p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty:
        prompt, counts = _seen(s, following, after, x)
        x = penalise(x, prompt, counts, p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
    if p.logit_bias:
        ids = torch.tensor(list(p.logit_bias), device=x.device)
        bias = torch.tensor(list(p.logit_bias.values()), dtype=x.dtype, device=x.device)
        x = x.index_add(1, ids, bias.expand(len(x), -1))
    early = min(len(x), p.min_tokens - s.generated - after)
    if early > 0 and s.ends:
        x = x.clone()
        x[:early, sorted(s.ends)] = -torch.inf
    positions = len(s.tokens) + after + torch.arange(len(x), device=x.device)
    tokens = choose(
        x,
        positions,
        temperature=p.temperature,
        top_k=p.top_k,
        top_p=p.top_p,
        min_p=p.min_p,
        seed=s.seed,
        choice=p.choice,
    )
    return tokens.tolist(), raw


def _seen(s: Sequence, following: list[int], after: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens the prompt has, [vocabulary] bool, and how often the answer has each, [rows, vocabulary]."""
    rows, vocabulary = x.shape
    prompt = torch.zeros(vocabulary, dtype=torch.bool, device=x.device)
    prompt[torch.tensor(s.request.prompt, device=x.device)] = True
    answer = s.tokens[s.prompt_length :] + following[:after]
    base = torch.bincount(torch.tensor(answer, dtype=torch.int64, device=x.device), minlength=vocabulary)
    counts = base.repeat(rows, 1)
    for i, token in enumerate(following[after : after + rows - 1]):
        counts[i + 1 :, token] += 1
    return prompt, counts


def describe(raw: Tensor, tokens: list[int], alternatives: int | None) -> tuple[Sampled, ...]:
    """`tokens` with their log-probabilities in raw [>= len(tokens), vocabulary] where they were asked for."""
    if alternatives is None or not tokens:
        return tuple(Sampled(t) for t in tokens)
    own, ids, values = top_logprobs(raw[: len(tokens)], torch.tensor(tokens, device=raw.device), alternatives)
    rows = zip(tokens, own.tolist(), ids.tolist(), values.tolist(), strict=True)
    return tuple(Sampled(t, p, tuple(zip(i, v, strict=True))) for t, p, i, v in rows)

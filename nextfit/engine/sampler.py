"""Choosing tokens for a step's rows: settings, penalties' counts and noise of the sequences that they belong to."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nextfit.engine.request import Sampled
from nextfit.engine.sequence import Sequence
from nextfit.ops.precision import wide
from nextfit.ops.sampling import choose, penalise, top_logprobs

_Settings = tuple[float, int, float, float]  # temperature, top-k, top-p, min-p
_GREEDY = (0.0, 0, 1.0, 0.0)


class Wanted(NamedTuple):
    """`rows` consecutive rows of one sequence: row i comes after `sequence.tokens` and `following[: after + i]`."""

    sequence: Sequence
    rows: int
    following: list[int]
    after: int = 0


def choose_tokens(logits: Tensor, wanted: Seq[Wanted]) -> tuple[list[list[int]], Tensor]:
    """Tokens of consecutive rows of several sequences: logits [rows, vocabulary], in the order of `wanted`.

    Returns the choices of each and the wide, unmodified logits. Every row is penalised and masked exactly as if
    the tokens before it had come one at a time, and chosen as if it were the only one.
    """
    dtype = wide(logits.dtype)
    raw = logits if logits.dtype == dtype else logits.to(dtype)
    ends = list(accumulate([w.rows for w in wanted]))
    if all(w.sequence.request.params.greedy and not w.sequence.guide for w in wanted):
        tokens = raw.argmax(-1).tolist()
    else:
        tokens = _pick(_prepared(raw, wanted, ends), wanted, ends)
    return [tokens[end - w.rows : end] for w, end in zip(wanted, ends, strict=True)], raw


def _prepared(raw: Tensor, wanted: Seq[Wanted], ends: Seq[int]) -> Tensor:
    """The logits to choose by; `raw` itself where nothing changes them."""
    x = raw
    for w, end in zip(wanted, ends, strict=True):
        if _changes(w):
            x = raw.clone() if x is raw else x
            x[end - w.rows : end] = _changed(x[end - w.rows : end], w)
    return x


def _penalised(w: Wanted) -> bool:
    p = w.sequence.request.params
    return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0


def _early(w: Wanted) -> int:
    """Rows in which no end token may come yet."""
    s = w.sequence
    return min(w.rows, s.request.params.min_tokens - s.generated - w.after) if s.ends else 0


def _changes(w: Wanted) -> bool:
    s = w.sequence
    return _penalised(w) or bool(s.request.params.logit_bias) or _early(w) > 0 or s.guide is not None


def _changed(x: Tensor, w: Wanted) -> Tensor:
    """Penalties, bias and mask on the rows x [rows, vocabulary] of one sequence."""
    p = w.sequence.request.params
    if _penalised(w):
        prompt, counts = _seen(w, x)
        x = penalise(x, prompt, counts, p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
    if p.logit_bias:
        ids = torch.tensor(list(p.logit_bias), device=x.device)
        bias = torch.tensor(list(p.logit_bias.values()), dtype=x.dtype, device=x.device)
        x = x.index_add(1, ids, bias.expand(len(x), -1))
    allowed = _allowed(w, x)
    return x if allowed is None else x.masked_fill(~allowed, -torch.inf)


def _allowed(w: Wanted, x: Tensor) -> Tensor | None:
    """Which tokens may be chosen in rows x [rows, vocabulary] of one sequence, bool; None: all.

    No end token before `min_tokens`, unless nothing else may come.
    """
    guide, early = w.sequence.guide, _early(w)
    masks = guide.masks(w.following, w.after, w.rows) if guide else [None] * w.rows
    if early <= 0 and not any(mask is not None for mask in masks):
        return None
    allowed = torch.ones_like(x, dtype=torch.bool)
    for row, mask in zip(allowed, masks, strict=True):
        if mask is not None:
            row.copy_(torch.from_numpy(mask))
    if early > 0:
        others = allowed[:early].clone()
        others[:, sorted(w.sequence.ends)] = False
        allowed[:early] = torch.where(others.any(-1, keepdim=True), others, allowed[:early])
    return allowed


def _seen(w: Wanted, x: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens the prompt has, [vocabulary] bool, and how often the answer has each, [rows, vocabulary]."""
    s, (rows, vocabulary) = w.sequence, x.shape
    prompt = torch.zeros(vocabulary, dtype=torch.bool, device=x.device)
    prompt[torch.tensor(s.request.prompt, device=x.device)] = True
    answer = s.tokens[s.prompt_length :] + w.following[: w.after]
    base = torch.bincount(torch.tensor(answer, dtype=torch.int64, device=x.device), minlength=vocabulary)
    counts = base.repeat(rows, 1)
    for i, token in enumerate(w.following[w.after : w.after + rows - 1]):
        counts[i + 1 :, token] += 1
    return prompt, counts


def _pick(x: Tensor, wanted: Seq[Wanted], ends: Seq[int]) -> list[int]:
    """The token of each row; rows with the same settings are chosen together."""
    groups: dict[_Settings, list[tuple[Wanted, int]]] = {}
    for w, end in zip(wanted, ends, strict=True):
        p = w.sequence.request.params
        settings = (p.temperature, p.top_k, p.top_p, p.min_p) if p.temperature else _GREEDY
        groups.setdefault(settings, []).append((w, end - w.rows))
    if len(groups) == 1:
        ((settings, group),) = groups.items()
        return _chosen(x, [w for w, _ in group], settings)
    tokens = [0] * len(x)
    for settings, group in groups.items():
        rows = [row for w, start in group for row in range(start, start + w.rows)]
        index = torch.tensor(rows, device=x.device)
        for row, token in zip(rows, _chosen(x[index], [w for w, _ in group], settings), strict=True):
            tokens[row] = token
    return tokens


def _chosen(x: Tensor, group: Seq[Wanted], settings: _Settings) -> list[int]:
    temperature, top_k, top_p, min_p = settings
    if temperature == 0:
        return x.argmax(-1).tolist()
    noise = [
        (len(s.tokens) + w.after + i, _signed(s.seed), s.request.params.choice)
        for w in group
        for s in [w.sequence]
        for i in range(w.rows)
    ]
    positions, seeds, choices = torch.from_numpy(np.array(noise)).to(x.device).T
    return choose(
        x,
        positions,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seeds[:, None],
        choice=choices[:, None],
    ).tolist()


def _signed(seed: int) -> int:
    """The 64 bits of a seed as a tensor holds them."""
    return (seed + 2**63) % 2**64 - 2**63


def describe(raw: Tensor, first: int, tokens: list[int], alternatives: int | None) -> tuple[Sampled, ...]:
    """`tokens` with their log-probabilities in rows `first` and on of raw [rows, vocabulary], if asked for."""
    if alternatives is None or not tokens:
        return tuple([Sampled(t) for t in tokens])
    own, ids, values = top_logprobs(
        raw[first : first + len(tokens)], torch.tensor(tokens, device=raw.device), alternatives
    )
    rows = zip(tokens, own.tolist(), ids.tolist(), values.tolist(), strict=True)
    return tuple(Sampled(t, p, tuple(zip(i, v, strict=True))) for t, p, i, v in rows)

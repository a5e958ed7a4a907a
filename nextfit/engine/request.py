"""What goes into the engine and what comes out of it. No torch: the server and the scheduler pass these."""

from __future__ import annotations

import operator
from typing import Literal

import msgspec

from nextfit.engine.params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One choice to generate: `prompt` token ids and settings, under an `id` that is unique while it runs."""

    id: str
    prompt: list[int]
    params: SamplingParams


class Sampled(msgspec.Struct, frozen=True, array_like=True):
    """One token, with `logprob` and the likeliest `top` (id, logprob) if they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a request so far, or of many."""

    prompt_tokens: int = 0
    completion_tokens: int = 0  # without the end token
    cached_tokens: int = 0  # of the prompt
    rounds: int = 0  # steps of one verified token and its drafts
    drafted: int = 0  # tokens
    accepted: int = 0  # drafts that became part of the answer

    def __add__(self, other: Stats) -> Stats:
        return Stats(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class Output(msgspec.Struct, frozen=True, array_like=True):
    """What one step adds to a request. End tokens are not in `tokens`; an error may lack `stats`."""

    request_id: str
    tokens: tuple[Sampled, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token: int | None = None  # the end token that finished it
    error: str | None = None  # with "error": why
    stats: Stats | None = None
    param: str | None = None  # with "error": the request's setting that is to blame; None: none is
    prompt: tuple[
        Sampled, ...
    ] = ()  # with `prompt_logprobs`: the next tokens of the prompt, from its second on

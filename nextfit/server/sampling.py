"""A request body's sampling fields as the engine's settings, one per choice."""

from __future__ import annotations

import secrets
from dataclasses import replace

from nextfit.engine.params import SamplingParams
from nextfit.errors import RequestError
from nextfit.server.errors import ApiError
from nextfit.server.schemas import SamplingBody
from nextfit.server.service import Served


def choices(
    body: SamplingBody, served: Served, max_tokens: int | None, logprobs: int | None
) -> list[SamplingParams]:
    """`n` settings that differ in `choice` only. Without a seed all choices share a fresh one."""
    defaults = served.defaults
    given = {
        name: getattr(defaults, name) if (value := getattr(body, name)) is None else value
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    }
    given["top_k"] = max(0, given["top_k"])  # -1 switches it off, too
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise RequestError(f"min_tokens: {body.min_tokens} is above max_tokens, {max_tokens}", "min_tokens")
    one = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        **given,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=bias,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        logprobs=logprobs,
        stop=body.stop_strings,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        draft=body.draft,
        priority=body.priority or 0,
    )
    return [replace(one, choice=i) for i in range(body.n or 1)]


def check_model(name: str | None, served: Served) -> None:
    """A name that is not served is refused: the answer would come from another model than asked for."""
    if name is not None and name not in served.names:
        known = ", ".join(map(repr, served.names))
        raise ApiError(
            404,
            f"model: {name!r} is not served here, only {known}",
            param="model",
            code="model_not_found",
        )

"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nextfit.engine.request import Sampled
from nextfit.server.answers import Completion
from nextfit.server.constraints import text_form
from nextfit.server.generation import Generation
from nextfit.server.logprobs import completion_logprobs
from nextfit.server.observe import Record
from nextfit.server.openapi import of_answer
from nextfit.server.sampling import check_model, choices
from nextfit.server.schemas import CompletionRequest
from nextfit.server.service import Served, Service
from nextfit.server.stream import EventStream, while_connected

DEFAULT_MAX_TOKENS = 16  # OpenAI's


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", responses=of_answer(Completion))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        served = service.served()
        check_model(body.model, served)
        prompts, form = await asyncio.to_thread(lambda: (_prompts(body, served), text_form(body)))
        most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        own = {
            "grammar": form.source if form else None,
            "prompt_logprobs": body.logprobs if body.echo else None,
        }
        params = [replace(one, **own) for one in choices(body, served, most, body.logprobs)]  # type: ignore[arg-type]
        generation = Generation(served, prompts, params, Record.of(request.scope))
        reply = _Reply(body, generation, prompts)
        # refusals come before the status line of a stream
        await while_connected(request, generation.start())
        if body.stream:
            return EventStream(reply.events(), generation.close)
        return JSONResponse(await while_connected(request, reply.whole()))

    return routes


def _prompts(body: CompletionRequest, served: Served) -> list[list[int]]:
    """Token ids of each prompt; text is encoded as it stands, nothing is put before it."""
    prompts = [served.tokenizer.encode(p) if isinstance(p, str) else p for p in body.prompts]
    for ids in prompts:
        served.check_room(ids, "prompt")
    return prompts


class _Reply:
    """OpenAI's two shapes of one answer."""

    def __init__(self, body: CompletionRequest, generation: Generation, prompts: list[list[int]]) -> None:
        self._generation = generation
        self._tokenizer = generation.served.tokenizer
        self._logprobs = body.logprobs  # alternatives of each token
        self._include_usage = body.include_usage
        count = body.n or 1
        self._echoes = []
        if body.echo:
            asked = [pair for pair in zip(body.prompts, prompts, strict=True) for _ in range(count)]
            self._echoes = [self._echo(prompt, ids) for prompt, ids in asked]
        self._lengths = [0] * len(prompts) * count  # characters told so far
        self._head = {
            "id": f"cmpl-{generation.record.id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": generation.served.names[0],
        }

    def _echo(self, prompt: str | list[int], ids: list[int]) -> _Echo:
        text = prompt if isinstance(prompt, str) else self._tokenizer.decode(ids, skip_special=False)
        return _Echo(text, 1 if self._logprobs is None else len(ids), [Sampled(ids[0])])

    async def whole(self) -> dict[str, Any]:
        choices = []
        for i, answer in enumerate(await self._generation.answers()):
            echo = self._told(i, answer.prompt)
            choice = self._choice(i, answer.text, answer.tokens, answer.finish_reason)
            choices.append(_joined(echo, choice) if echo else choice)
        return {**self._head, "choices": choices, "usage": self._generation.usage.as_json()}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        for i in range(len(self._echoes)):
            if echo := self._told(i, ()):
                yield self._envelope([echo], None)
        async for piece in self._generation.pieces():
            if piece.prompt and (echo := self._told(piece.index, piece.prompt)):
                yield self._envelope([echo], None)
            if piece.text or piece.finish_reason or (self._logprobs is not None and piece.tokens):
                choice = self._choice(piece.index, piece.text, piece.tokens, piece.finish_reason)
                yield self._envelope([choice], None)
        if self._include_usage:
            yield self._envelope([], self._generation.usage.as_json())

    def _told(self, index: int, tokens: Sequence[Sampled]) -> dict[str, Any] | None:
        """The prompt as part of choice `index`, once `tokens` complete it; None before, and where it is not echoed."""
        if not self._echoes:
            return None
        echo = self._echoes[index]
        echo.tokens += tokens
        if len(echo.tokens) < echo.count:
            return None
        return self._choice(index, echo.text, echo.tokens, None)

    def _choice(self, index: int, text: str, tokens: Sequence[Sampled], reason: str | None) -> dict[str, Any]:
        probabilities = None
        if self._logprobs is not None and tokens:
            start = self._lengths[index]
            probabilities = completion_logprobs(self._tokenizer, tokens, start, self._logprobs)
        self._lengths[index] += len(text)
        return {"index": index, "text": text, "logprobs": probabilities, "finish_reason": reason}

    def _envelope(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        return {**chunk, "usage": usage} if self._include_usage else chunk


@dataclass(slots=True)
class _Echo:
    """A prompt that is part of its answer, when `count` tokens of it are there."""

    text: str
    count: int
    tokens: list[Sampled]


def _joined(echo: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """A choice with the prompt before it."""
    one, other = echo["logprobs"], choice["logprobs"]
    if one and other:
        one = {name: one[name] and one[name] + other[name] for name in one}
    return {**choice, "text": echo["text"] + choice["text"], "logprobs": one or other}

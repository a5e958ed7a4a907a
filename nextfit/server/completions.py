"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
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
        params = choices(body, served, body.max_tokens or DEFAULT_MAX_TOKENS, body.logprobs)
        if form is not None:
            params = [replace(one, grammar=form.source) for one in params]
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
        self._logprobs = body.logprobs is not None
        self._include_usage = body.include_usage
        texts = (
            [p if isinstance(p, str) else self._tokenizer.decode(p) for p in body.prompts]
            if body.echo
            else []
        )
        count = body.n or 1
        self._before = [text for text in texts or [""] * len(prompts) for _ in range(count)]
        self._lengths = [0] * len(self._before)  # characters streamed so far
        self._head = {
            "id": f"cmpl-{generation.record.id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": generation.served.names[0],
        }

    async def whole(self) -> dict[str, Any]:
        answers = await self._generation.answers()
        choices = [
            self._choice(i, before + answer.text, answer.tokens, answer.finish_reason)
            for i, (before, answer) in enumerate(zip(self._before, answers, strict=True))
        ]
        return {**self._head, "choices": choices, "usage": self._generation.usage.as_json()}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        for i, before in enumerate(self._before):
            if before:
                yield self._envelope([self._choice(i, before, (), None)], None)
        async for piece in self._generation.pieces():
            if piece.text or piece.finish_reason or (self._logprobs and piece.tokens):
                choice = self._choice(piece.index, piece.text, piece.tokens, piece.finish_reason)
                yield self._envelope([choice], None)
        if self._include_usage:
            yield self._envelope([], self._generation.usage.as_json())

    def _choice(self, index: int, text: str, tokens: Sequence[Sampled], reason: str | None) -> dict[str, Any]:
        probabilities = None
        if self._logprobs and tokens:
            probabilities = completion_logprobs(self._tokenizer, tokens, self._lengths[index])
        self._lengths[index] += len(text)
        return {"index": index, "text": text, "logprobs": probabilities, "finish_reason": reason}

    def _envelope(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        return {**chunk, "usage": usage} if self._include_usage else chunk

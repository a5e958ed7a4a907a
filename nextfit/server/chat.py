"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nextfit.engine.request import Sampled
from nextfit.errors import RequestError
from nextfit.server.errors import ApiError
from nextfit.server.generation import Generation
from nextfit.server.logprobs import chat_logprobs
from nextfit.server.observe import Record
from nextfit.server.sampling import check_model, choices
from nextfit.server.schemas import ChatMessage, ChatRequest, unsupported
from nextfit.server.service import Served, Service
from nextfit.server.stream import EventStream, while_connected

# OpenAI's levels as the model's template knows them; "none" is no thinking at all
EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh"}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        served = service.served()
        check_model(body, served)
        ids = await asyncio.to_thread(_prompt, body, served)
        limit = body.max_completion_tokens or body.max_tokens
        params = choices(body, served, limit, (body.top_logprobs or 0) if body.logprobs else None)
        generation = Generation(served, [ids], params, Record.of(request.scope))
        reply = _Reply(body, generation)
        # refusals come before the status line of a stream
        await while_connected(request, generation.start())
        if body.stream:
            return EventStream(reply.events(), generation.close)
        return JSONResponse(await while_connected(request, reply.whole()))

    return routes


def _prompt(body: ChatRequest, served: Served) -> list[int]:
    """Token ids of the conversation as the checkpoint's template writes it."""
    if served.template is None:
        raise ApiError(400, "the checkpoint has no chat template; /v1/completions works", code="unsupported")
    kwargs: dict[str, Any] = {}
    if body.reasoning_effort == "none":
        kwargs["enable_thinking"] = False
    elif body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = EFFORT[body.reasoning_effort]
    messages = [_message(m, f"messages[{i}]") for i, m in enumerate(body.messages)]
    try:
        text = served.template.render(messages, chat_template_kwargs=body.chat_template_kwargs, **kwargs)
    except RecursionError:
        raise RequestError("messages or chat_template_kwargs are nested too deeply", "messages") from None
    ids = served.tokenizer.encode(text)
    served.check_room(ids, "messages")
    return ids


def _message(message: ChatMessage, where: str) -> dict[str, Any]:
    """The turn with its text parts joined and the developer's role under the name that templates know."""
    fields = message.model_dump(exclude_none=True)
    if message.role == "developer":
        fields["role"] = "system"
    if isinstance(message.content, list):
        texts = []
        for i, part in enumerate(message.content):
            if part.type != "text" or part.text is None:
                raise unsupported(f"{where}.content[{i}]", f"a part of type {part.type!r} is")
            texts.append(part.text)
        fields["content"] = "".join(texts)
    return fields


class _Reply:
    """OpenAI's two shapes of one answer."""

    def __init__(self, body: ChatRequest, generation: Generation) -> None:
        self._generation = generation
        self._count = body.n or 1
        self._logprobs = bool(body.logprobs)
        self._include_usage = body.include_usage
        self._head = {
            "id": f"chatcmpl-{generation.record.id}",
            "created": int(time.time()),
            "model": generation.served.names[0],
        }

    async def whole(self) -> dict[str, Any]:
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._probabilities(answer.tokens),
                "finish_reason": answer.finish_reason,
            }
            for i, answer in enumerate(await self._generation.answers())
        ]
        usage = self._generation.usage.as_json()
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        for i in range(self._count):
            yield self._chunk(i, {"role": "assistant", "content": ""})
        async for piece in self._generation.pieces():
            if piece.text or (self._logprobs and piece.tokens):
                yield self._chunk(piece.index, {"content": piece.text}, piece.tokens)
            if piece.finish_reason:
                yield self._chunk(piece.index, {}, reason=piece.finish_reason)
        if self._include_usage:
            yield self._envelope([], self._generation.usage.as_json())

    def _probabilities(self, tokens: Sequence[Sampled]) -> dict[str, Any] | None:
        return chat_logprobs(self._generation.served.tokenizer, tokens) if self._logprobs and tokens else None

    def _chunk(
        self, index: int, delta: dict[str, str], tokens: Sequence[Sampled] = (), reason: str | None = None
    ) -> dict[str, Any]:
        probabilities = self._probabilities(tokens)
        choice = {"index": index, "delta": delta, "logprobs": probabilities, "finish_reason": reason}
        return self._envelope([choice], None)

    def _envelope(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return {**chunk, "usage": usage} if self._include_usage else chunk

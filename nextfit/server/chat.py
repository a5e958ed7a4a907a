"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nextfit.engine.request import Sampled
from nextfit.server.answers import ChatCompletion
from nextfit.server.conversation import begin
from nextfit.server.generation import Answer, Generation
from nextfit.server.logprobs import chat_logprobs
from nextfit.server.openapi import of_answer
from nextfit.server.schemas import ChatRequest
from nextfit.server.service import Service
from nextfit.server.stream import EventStream, while_connected
from nextfit.text.events import Arguments, CallBegin, Content, Event, Reasoning


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", responses=of_answer(ChatCompletion))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        generation = await begin(body, service.served(), request)
        reply = _Reply(body, generation)
        if body.stream:
            return EventStream(reply.events(), generation.close)
        return JSONResponse(await while_connected(request, reply.whole()))

    return routes


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
                "message": _message(answer),
                "logprobs": self._probabilities(answer.tokens),
                "finish_reason": _reason(answer.finish_reason, called=bool(answer.reply.calls)),
            }
            for i, answer in enumerate(await self._generation.answers())
        ]
        usage = self._generation.usage.as_json()
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        for i in range(self._count):
            yield self._chunk(i, {"role": "assistant", "content": ""})
        called = [False] * self._count
        async for piece in self._generation.pieces():
            deltas = [delta for event in piece.events if (delta := _delta(event))]
            if not deltas and self._logprobs and piece.tokens:
                deltas = [{"content": ""}]
            called[piece.index] |= any("tool_calls" in delta for delta in deltas)
            for i, delta in enumerate(deltas):
                yield self._chunk(piece.index, delta, () if i else piece.tokens)
            if piece.finish_reason:
                reason = _reason(piece.finish_reason, called=called[piece.index])
                yield self._chunk(piece.index, {}, reason=reason)
        if self._include_usage:
            yield self._envelope([], self._generation.usage.as_json())

    def _probabilities(self, tokens: Sequence[Sampled]) -> dict[str, Any] | None:
        return chat_logprobs(self._generation.served.tokenizer, tokens) if self._logprobs and tokens else None

    def _chunk(
        self, index: int, delta: dict[str, Any], tokens: Sequence[Sampled] = (), reason: str | None = None
    ) -> dict[str, Any]:
        probabilities = self._probabilities(tokens)
        choice = {"index": index, "delta": delta, "logprobs": probabilities, "finish_reason": reason}
        return self._envelope([choice], None)

    def _envelope(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return {**chunk, "usage": usage} if self._include_usage else chunk


def _message(answer: Answer) -> dict[str, Any]:
    reply = answer.reply
    message = {"role": "assistant", "content": reply.content, "refusal": None}
    message["reasoning_content"] = reply.reasoning or None
    if not reply.calls:
        return message
    calls = [_call(call.name, call.arguments) for call in reply.calls]
    return {**message, "content": reply.content or None, "tool_calls": calls}


def _call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _delta(event: Event) -> dict[str, Any] | None:
    match event:
        case Reasoning(text):
            return {"reasoning_content": text}
        case Content(text):
            return {"content": text}
        case CallBegin(index, name):
            return {"tool_calls": [{"index": index, **_call(name, "")}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return None


def _reason(reason: str | None, *, called: bool) -> str | None:
    return "tool_calls" if called and reason == "stop" else reason

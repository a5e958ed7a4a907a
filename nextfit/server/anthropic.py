"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same conversation as OpenAI's chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nextfit.server.answers import AnthropicError, Counted, MessagesReply
from nextfit.server.anthropic_schemas import MessagesRequest, PromptBody
from nextfit.server.conversation import begin, converse
from nextfit.server.generation import Generation, Piece, Usage
from nextfit.server.openapi import of_answer, of_body
from nextfit.server.parts import Change, Part, Parts
from nextfit.server.sampling import check_model
from nextfit.server.service import Service
from nextfit.server.stream import ANTHROPIC, EventStream, while_connected

# thoughts are not signed; clients take a thought without any for damaged
SIGNATURE = "unsigned"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/messages", responses=of_answer(MessagesReply, AnthropicError))
    async def messages(body: MessagesRequest, request: Request) -> Response:
        generation = await begin(body.as_chat(), service.served(), request)
        reply = _Reply(generation)
        if body.stream:
            return EventStream(reply.events(), generation.close, ANTHROPIC)
        return JSONResponse(await while_connected(request, reply.whole()))

    @routes.post("/v1/messages/count_tokens", response_model=Counted, responses=of_body(AnthropicError))
    async def count_tokens(body: PromptBody) -> dict[str, int]:
        served, chat = service.served(), body.chat()
        check_model(chat.model, served)
        conversation = await asyncio.to_thread(converse, chat, served)
        return {"input_tokens": len(conversation.ids)}

    return routes


class _Reply:
    """One answer, whole or as events."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._parts = Parts()
        self._message: dict[str, Any] = {
            "id": f"msg_{generation.record.id}",
            "type": "message",
            "role": "assistant",
            "model": generation.served.names[0],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(generation.usage),
        }

    async def whole(self) -> dict[str, Any]:
        """A call that was cut off is left out: its arguments are no JSON."""
        end: dict[str, Any] = {}
        try:
            async for event in self.events():
                if event["type"] == "message_delta":
                    end = {**event["delta"], "usage": event["usage"]}
        finally:
            self._generation.close()
        return self._message | end | {"content": [_block(part) for part in self._parts.all if part.whole]}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "message_start", "message": self._message}
        async for piece in self._generation.pieces():
            for event in piece.events:
                for change in self._parts.add(event):
                    for told in _told(change):
                        yield told
            last = piece
        for change in self._parts.end():
            for told in _told(change):
                yield told
        delta = {"stop_reason": self._reason(last), "stop_sequence": last.stop}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(self._generation.usage)}
        yield {"type": "message_stop"}

    def _reason(self, last: Piece) -> str:
        if last.finish_reason == "length":
            return "max_tokens"
        if self._parts.called:
            return "tool_use"
        return "end_turn" if last.stop is None else "stop_sequence"


def _told(change: Change) -> Iterator[dict[str, Any]]:
    """The events that tell of a change."""
    part = change.part
    match change.what:
        case "begin":
            yield {"type": "content_block_start", "index": part.index, "content_block": _empty(part)}
        case "more":
            kind, field = _DELTAS[part.kind]
            yield _delta(part, {"type": kind, field: change.text})
        case "end":
            if part.kind == "thought":
                yield _delta(part, {"type": "signature_delta", "signature": SIGNATURE})
            yield {"type": "content_block_stop", "index": part.index}


_DELTAS = {
    "thought": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def _delta(part: Part, delta: dict[str, str]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": part.index, "delta": delta}


def _empty(part: Part) -> dict[str, Any]:
    """The block as it begins."""
    match part.kind:
        case "thought":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
        case "call":
            return {"type": "tool_use", "id": f"toolu_{part.id}", "name": part.name, "input": {}}


def _block(part: Part) -> dict[str, Any]:
    match part.kind:
        case "thought":
            filled = {"thinking": part.text, "signature": SIGNATURE}
        case "text":
            filled = {"text": part.text}
        case "call":
            filled = {"input": json.loads(part.text)}
    return _empty(part) | filled


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts cached tokens apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same conversation as OpenAI's chat."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nextfit.server.anthropic_schemas import MessagesRequest, PromptBody
from nextfit.server.conversation import begin, converse
from nextfit.server.generation import Generation, Piece, Usage
from nextfit.server.sampling import check_model
from nextfit.server.service import Service
from nextfit.server.stream import ANTHROPIC, EventStream, while_connected
from nextfit.text.events import Arguments, CallBegin, CallEnd, Content, Event, Reasoning

# thoughts are not signed; clients take a thought without any for damaged
SIGNATURE = "unsigned"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/messages")
    async def messages(body: MessagesRequest, request: Request) -> Response:
        generation = await begin(body.as_chat(), service.served(), request)
        reply = _Reply(generation)
        if body.stream:
            return EventStream(reply.events(), generation.close, ANTHROPIC)
        return JSONResponse(await while_connected(request, reply.whole()))

    @routes.post("/v1/messages/count_tokens")
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
        self._blocks = _Blocks()
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
        end: dict[str, Any] = {}
        async for event in self.events():
            if event["type"] == "message_delta":
                end = {**event["delta"], "usage": event["usage"]}
        return self._message | end | {"content": self._blocks.content()}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "message_start", "message": self._message}
        last = None
        try:
            async for piece in self._generation.pieces():
                for event in piece.events:
                    for told in self._blocks.add(event):
                        yield told
                last = piece
        finally:
            self._generation.close()
        assert last is not None, "an answer ends with a piece"
        for told in self._blocks.end():
            yield told
        delta = {"stop_reason": self._reason(last), "stop_sequence": last.stop}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(self._generation.usage)}
        yield {"type": "message_stop"}

    def _reason(self, last: Piece) -> str:
        if last.finish_reason == "length":
            return "max_tokens"
        if self._blocks.called:
            return "tool_use"
        return "end_turn" if last.stop is None else "stop_sequence"


class _Blocks:
    """The blocks of an answer; a new one begins where the kind of event changes."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._text: list[list[str]] = []  # of each block
        self._ended: list[bool] = []  # as it should

    @property
    def called(self) -> bool:
        return any(block["type"] == "tool_use" for block in self._blocks)

    def add(self, event: Event) -> Iterator[dict[str, Any]]:
        """The events that tell of `event`."""
        match event:
            case Reasoning(text):
                yield from self._more("thinking", {"thinking": "", "signature": ""}, "thinking_delta", text)
            case Content(text):
                yield from self._more("text", {"text": ""}, "text_delta", text)
            case CallBegin(_, name):
                id = f"toolu_{secrets.token_hex(12)}"
                yield from self._begin({"type": "tool_use", "id": id, "name": name, "input": {}})
            case Arguments(_, text):
                yield self._delta("input_json_delta", "partial_json", text)
            case CallEnd(_):
                yield from self._stop()

    def end(self) -> Iterator[dict[str, Any]]:
        """The events that end the last block, also one that was cut off."""
        if self._blocks and not self._ended[-1]:
            yield from self._stop(cut=self._blocks[-1]["type"] == "tool_use")

    def content(self) -> list[dict[str, Any]]:
        """All blocks, whole; a call that was cut off is left out, as its arguments are no JSON."""
        return [
            self._filled(block, "".join(text))
            for block, text, ended in zip(self._blocks, self._text, self._ended, strict=True)
            if ended
        ]

    def _filled(self, block: dict[str, Any], text: str) -> dict[str, Any]:
        match block["type"]:
            case "thinking":
                return block | {"thinking": text, "signature": SIGNATURE}
            case "text":
                return block | {"text": text}
        return block | {"input": json.loads(text or "{}")}

    def _more(self, kind: str, fresh: dict[str, Any], delta: str, text: str) -> Iterator[dict[str, Any]]:
        if not self._blocks or self._ended[-1] or self._blocks[-1]["type"] != kind:
            yield from self._begin({"type": kind, **fresh})
        yield self._delta(delta, kind, text)

    def _begin(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self.end()
        self._blocks.append(block)
        self._text.append([])
        self._ended.append(False)
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}

    def _delta(self, kind: str, field: str, text: str) -> dict[str, Any]:
        self._text[-1].append(text)
        return {
            "type": "content_block_delta",
            "index": len(self._blocks) - 1,
            "delta": {"type": kind, field: text},
        }

    def _stop(self, cut: bool = False) -> Iterator[dict[str, Any]]:
        index = len(self._blocks) - 1
        if self._blocks[-1]["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        self._ended[-1] = not cut
        yield {"type": "content_block_stop", "index": index}


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts cached tokens apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

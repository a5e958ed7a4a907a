"""POST /v1/responses: OpenAI's Responses API, without anything stored, over the same conversation as its chat."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from nextfit.server import answers
from nextfit.server.conversation import begin
from nextfit.server.generation import Generation, Usage
from nextfit.server.openapi import of_answer
from nextfit.server.parts import Change, Part, Parts
from nextfit.server.responses_schemas import ResponsesRequest, Text
from nextfit.server.service import Service
from nextfit.server.stream import RESPONSES, EventStream, while_connected


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/responses", responses=of_answer(answers.Response))
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        generation = await begin(body.as_chat(), service.served(), request)
        reply = _Reply(body, generation)
        if body.stream:
            return EventStream(reply.events(), generation.close, RESPONSES)
        return JSONResponse(await while_connected(request, reply.whole()))

    return routes


class _Reply:
    """One answer, whole or as events."""

    def __init__(self, body: ResponsesRequest, generation: Generation) -> None:
        self._generation = generation
        self._parts = Parts()
        self._response: dict[str, Any] = {
            "id": f"resp_{generation.record.id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": generation.served.names[0],
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": _format(body.text)},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    async def whole(self) -> dict[str, Any]:
        try:
            async for event in self.events():
                last = event
        finally:
            self._generation.close()
        response: dict[str, Any] = last["response"]
        return response

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        number = 0
        async for event in self._events():
            yield {**event, "sequence_number": number}
            number += 1

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response}
        async for piece in self._generation.pieces():
            for event in piece.events:
                for change in self._parts.add(event):
                    for told in _told(change):
                        yield told
            reason = piece.finish_reason
        for change in self._parts.end():
            for told in _told(change):
                yield told
        status = "incomplete" if reason == "length" else "completed"
        done = {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if reason == "length" else None,
            "output": [_item(part) for part in self._parts.all],
            "usage": _usage(self._generation.usage),
        }
        yield {"type": f"response.{status}", "response": self._response | done}


def _format(text: Text | None) -> dict[str, Any]:
    """As it was asked for."""
    if text is None or text.format is None:
        return {"type": "text"}
    return text.format.model_dump(by_alias=True, exclude_unset=True)


def _told(change: Change) -> Iterator[dict[str, Any]]:
    """The events that tell of a change."""
    part = change.part
    item = {"output_index": part.index}
    at = {"item_id": _id(part), **item}
    content = {**at, "content_index": 0}
    match change.what:
        case "begin":
            yield {"type": "response.output_item.added", **item, "item": _item(part)}
            if part.kind != "call":
                yield {"type": "response.content_part.added", **content, "part": _content(part, "")}
        case "more":
            yield _delta(part) | {"delta": change.text}
        case "end":
            text = part.text
            yield _delta(part, "done") | {_FIELDS[part.kind]: text}
            if part.kind != "call":
                yield {"type": "response.content_part.done", **content, "part": _content(part, text)}
            yield {"type": "response.output_item.done", **item, "item": _item(part)}


_NAMES = {"thought": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
_FIELDS = {"thought": "text", "text": "text", "call": "arguments"}
_IDS = {"thought": "rs", "text": "msg", "call": "fc"}


def _id(part: Part) -> str:
    return f"{_IDS[part.kind]}_{part.id}"


def _delta(part: Part, what: str = "delta") -> dict[str, Any]:
    event = {"type": f"response.{_NAMES[part.kind]}.{what}", "item_id": _id(part), "output_index": part.index}
    if part.kind == "call":
        return event
    return event | {"content_index": 0} | ({"logprobs": []} if part.kind == "text" else {})


def _content(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "thought":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(part: Part) -> dict[str, Any]:
    """The item as far as it has come."""
    status = "in_progress" if part.open else "completed" if part.whole else "incomplete"
    text = part.text
    head = {"id": _id(part), "status": status}
    match part.kind:
        case "thought":
            content = [_content(part, text)] if text else []
            return {"type": "reasoning", **head, "summary": [], "content": content}
        case "text":
            content = [_content(part, text)] if text else []
            return {"type": "message", **head, "role": "assistant", "content": content}
        case "call":
            call = {"call_id": f"call_{part.id}", "name": part.name, "arguments": text}
            return {"type": "function_call", **head, **call}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

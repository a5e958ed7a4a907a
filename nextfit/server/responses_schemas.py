"""Request bodies of OpenAI's Responses API, and the chat requests that they are.

Unknown fields (`metadata` aside: it is sent back) are tolerated. Nothing is kept between requests: what refers to an
earlier one is refused, and `store` changes nothing.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from nextfit.server.errors import ApiError
from nextfit.server.schemas import MAX_LOGPROBS, NOT_EMPTY, Body, ChatRequest, unsupported
from nextfit.text.messages import read_arguments

_TEXTS = ("input_text", "output_text", "text")


class Reasoning(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    content: Any = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> TextFormat:
        if self.type == "json_schema" and "content" not in self.model_fields_set:
            field = "text.format.schema"
            raise ApiError(400, f"{field}: required field is missing", param=field, code="missing")
        return self


class Text(Body):
    format: TextFormat | None = None


class ResponsesRequest(Body):
    model: str | None = None
    input: Annotated[str | list[dict[str, Any]], Field(json_schema_extra=NOT_EMPTY)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    stream: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None

    @model_validator(mode="after")
    def _supported(self) -> ResponsesRequest:
        for name in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, name) is not None:
                raise unsupported(name, "nothing is stored here, so what was stored is")
        if self.background:
            raise unsupported("background", "an answer that nobody waits for is")
        if self.top_logprobs:
            raise unsupported("top_logprobs", "log-probabilities on this route are")
        if not self.input:
            raise ApiError(
                400, "input: is empty, expected a text or items", param="input", code="invalid_value"
            )
        return self

    def as_chat(self) -> ChatRequest:
        """The same as a chat request. Raises ApiError."""
        turns = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            turns.append({"role": "user", "content": self.input})
        else:
            turns += _turns(self.input)
        return ChatRequest(
            model=self.model,
            messages=turns,  # type: ignore[arg-type]
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            response_format=_format(self.text.format) if self.text and self.text.format else None,  # type: ignore[arg-type]
            tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())] or None,
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
        )


def _string(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(f"{where}.{name}", value, "a string")
    return value


def _wrong(param: str, found: object, expected: str) -> ApiError:
    message = f"{param}: {expected} is expected, got {reprlib.repr(found)}"
    return ApiError(400, message, param=param, code="invalid_value")


def _text(content: Any, where: str) -> str:
    """The text of a string or of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise _wrong(where, content, "a string or a list of parts")
    texts = []
    for i, part in enumerate(content):
        if part.get("type") not in _TEXTS:
            raise unsupported(f"{where}[{i}]", f"a part of type {part.get('type')!r} is")
        texts.append(_string(part, "text", f"{where}[{i}]"))
    return "".join(texts)


def _turns(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Chat turns: a thought, a text and calls of the assistant that follow each other are one."""
    turn: dict[str, Any] = {}  # of the assistant, so far
    for i, item in enumerate(items):
        where, kind = f"input[{i}]", item.get("type", "message")
        mine = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if turn and (not mine or kind == "reasoning" or (kind == "message" and "content" in turn)):
            yield turn
            turn = {}
        if mine:
            turn = turn or {"role": "assistant"}
        match kind:
            case "message" if mine:
                turn["content"] = _text(item.get("content"), f"{where}.content")
            case "message":
                yield {
                    "role": _role(item, where),
                    "content": _text(item.get("content"), f"{where}.content"),
                }
            case "reasoning":
                turn["reasoning_content"] = _thought(item, where)
            case "function_call":
                arguments = read_arguments(_string(item, "arguments", where), f"{where}.arguments")
                function = {"name": _string(item, "name", where), "arguments": arguments}
                call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
            case "function_call_output":
                content = _text(item.get("output"), f"{where}.output")
                yield {"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": content}
            case _:
                raise unsupported(where, f"an item of type {kind!r} is")
    if turn:
        yield turn


def _role(item: dict[str, Any], where: str) -> str:
    role = item.get("role")
    if role not in ("user", "system", "developer"):
        raise _wrong(f"{where}.role", role, "user, assistant, system or developer")
    return str(role)


def _thought(item: dict[str, Any], where: str) -> str:
    """What was thought, or else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise _wrong(f"{where}.{name}", parts, "a list of parts")
        if parts:
            return "".join(_string(part, "text", f"{where}.{name}[{i}]") for i, part in enumerate(parts))
    return ""


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", f"a tool of type {tool.get('type')!r} is")
    function = {
        k: tool[k] for k in ("name", "description", "parameters", "strict") if tool.get(k) is not None
    }
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": _string(choice, "name", "tool_choice")}}
    return choice


def _format(format: TextFormat) -> dict[str, Any]:
    """`text.format` has beside its type what chat's `response_format` has in `json_schema`."""
    if format.type != "json_schema":
        return {"type": format.type}
    inner = {"name": format.name, "schema": format.content, "strict": format.strict}
    return {"type": "json_schema", "json_schema": inner}

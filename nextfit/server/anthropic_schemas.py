"""Request bodies of Anthropic's routes, and the chat requests that they are.

Field meanings are Anthropic's. Unknown fields (`metadata`, `cache_control`, `service_tier` ...) are tolerated.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nextfit.server.errors import ApiError
from nextfit.server.schemas import Body, ChatRequest, StopString, unsupported

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


class Block(BaseModel):
    """A part of a message; what else it has depends on its type."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    type: str

    def text(self, name: str, where: str) -> str:
        """The string in field `name`. Raises ApiError."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, where, "a string")
        return value

    def get(self, name: str) -> Any:
        return (self.model_extra or {}).get(name)

    def wrong(self, name: str, where: str, expected: str) -> ApiError:
        found = reprlib.repr(self.get(name))
        message = f"{where}.{name}: {expected} is expected in a block of type {self.type!r}, got {found}"
        return ApiError(400, message, param=f"{where}.{name}", code="invalid_value")


Blocks = str | list[Block]


class Message(Body):
    role: Literal["user", "assistant", "system"]
    content: Blocks


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class Tool(Body):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class PromptBody(Body):
    """What makes the prompt: the body of /v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Blocks | None = None
    thinking: Thinking | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None

    def chat(self, **settings: Any) -> ChatRequest:
        """The same as OpenAI's request, with other fields of it. Raises ApiError."""
        turns = [{"role": "system", "content": _text(self.system, "system")}] if self.system else []
        for i, message in enumerate(self.messages):
            turns += _turns(message, f"messages[{i}].content")
        fields: dict[str, Any] = {"model": self.model, "messages": turns, **settings}
        fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())] or None
        if self.tool_choice:
            fields["tool_choice"] = _choice(self.tool_choice)
            fields["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        if self.thinking and self.thinking.type in ("enabled", "disabled"):
            fields["enable_thinking"] = self.thinking.type == "enabled"
            fields["thinking_budget"] = self.thinking.budget_tokens
        if self.output_config and self.output_config.effort:
            fields["reasoning_effort"] = _EFFORTS[self.output_config.effort]
        if self.output_config and self.output_config.format is not None:
            fields["response_format"] = _format(self.output_config.format)
        return ChatRequest(**fields)


class MessagesRequest(PromptBody):
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None

    def as_chat(self) -> ChatRequest:
        return self.chat(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences or None,
        )


def _text(content: Blocks, where: str) -> str:
    """The text of a turn that can have nothing else."""
    if isinstance(content, str):
        return content
    return "".join([_only_text(block, f"{where}[{i}]") for i, block in enumerate(content)])


def _only_text(block: Block, where: str) -> str:
    if block.type != "text":
        raise unsupported(where, f"a block of type {block.type!r} is")
    return block.text("text", where)


def _turns(message: Message, where: str) -> Iterator[dict[str, Any]]:
    """OpenAI's turns for one of Anthropic's: each result of a tool is one of its own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
    elif message.role == "assistant":
        yield _assistant(message.content, where)
    else:
        text = None
        for i, block in enumerate(message.content):
            if block.type == "tool_result" and message.role == "user":
                if text is not None:
                    yield {"role": "user", "content": text}
                    text = None
                yield _result(block, f"{where}[{i}]")
            else:
                text = (text or "") + _only_text(block, f"{where}[{i}]")
        if text is not None or not message.content:
            yield {"role": message.role, "content": text or ""}


def _result(block: Block, where: str) -> dict[str, Any]:
    content = block.get("content") or ""
    try:
        blocks = content if isinstance(content, str) else [Block.model_validate(part) for part in content]
    except (TypeError, ValidationError):
        raise block.wrong("content", where, "a string or a list of blocks") from None
    text = _text(blocks, f"{where}.content")
    return {"role": "tool", "tool_call_id": block.text("tool_use_id", where), "content": text}


def _assistant(blocks: list[Block], where: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": ""}
    thought, calls = "", []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        match block.type:
            case "thinking":
                thought += block.text("thinking", at)
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = block.get("input")
                if not isinstance(arguments, dict):
                    raise block.wrong("input", at, "an object")
                function = {"name": block.text("name", at), "arguments": arguments}
                calls.append({"id": block.text("id", at), "type": "function", "function": function})
            case _:
                turn["content"] += _only_text(block, at)
    return (
        turn | ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})
    )


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(f"{where}.type", f"a tool that runs on the server, {tool.type!r}, is")
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def _choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        message = "tool_choice.name: is missing; a choice of type 'tool' names one"
        raise ApiError(400, message, param="tool_choice.name", code="missing")
    return {"type": "function", "function": {"name": choice.name}}


def _format(format: dict[str, Any]) -> dict[str, Any]:
    if format.get("type") != "json_schema" or not isinstance(format.get("schema"), dict):
        message = f"output_config.format: is {format!r}, expected type 'json_schema' with a schema"
        raise ApiError(400, message, param="output_config.format", code="invalid_value")
    return {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": format["schema"], "strict": True},
    }

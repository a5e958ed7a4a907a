"""What a request demands of the form of its answer, as one grammar: calls, JSON, text of a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nextfit.server.errors import ApiError
from nextfit.server.schemas import ChatRequest, SamplingBody
from nextfit.text import formats
from nextfit.text.formats import Format
from nextfit.text.schema import checked

NO_PARAMETERS = {"type": "object", "properties": {}}


def demanded(body: ChatRequest, tools: Sequence[Mapping[str, Any]]) -> Format | None:
    """The form that the answer behind any thought must have; None: any. `tools` are those that may be called.

    Raises ApiError and RequestError.
    """
    text, choice = text_form(body), chosen(body, tools)
    single = body.parallel_tool_calls is False
    if choice == "required":
        return formats.calls(_parameters(tools), single=single)
    if isinstance(choice, dict):
        return formats.calls([t for t in _parameters(tools) if t[0] == choice["name"]], single=True)
    if text is not None and tools:
        return formats.either(text, formats.calls(_parameters(tools), single=single))
    if text is None and any(tool["function"].get("strict") for tool in tools):
        return formats.text_and_calls(_parameters(tools), single=single)
    return text


def chosen(body: ChatRequest, tools: Sequence[Mapping[str, Any]]) -> str | dict[str, str]:
    """`tool_choice`: auto, none, required, or {"name": ...}."""
    choice = body.tool_choice
    if choice is None or choice in ("auto", "none"):
        return choice or "auto"
    if choice == "required":
        if not tools:
            raise refused("tool_choice", "demands a call, but there are no tools")
        return choice
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise refused(
            "tool_choice", f"is {choice!r}, expected none, auto, required or a function with its name"
        )
    if all(tool["function"]["name"] != name for tool in tools):
        raise refused("tool_choice", f"{name!r} is not among tools")
    return {"name": name}


def refused(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", param=param, code="invalid_value")


def text_form(body: SamplingBody) -> Format | None:
    """What the text of an answer must be like; None: anything. Raises ApiError and RequestError."""
    wanted = body.response_format
    found: dict[str, Format] = {}
    if wanted is not None and wanted.type == "json_object":
        found["response_format"] = formats.json_object()
    elif wanted is not None and wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise ApiError(
                400, "response_format.json_schema: required field is missing",
                param="response_format.json_schema", code="missing",
            )  # fmt: skip
        field, strict = "response_format.json_schema.schema", wanted.json_schema.strict is not False
        found["response_format"] = formats.json_schema(
            checked(wanted.json_schema.content, field, strict=strict), field
        )
    if body.regex is not None:
        found["regex"] = formats.regex(body.regex)
    if body.grammar is not None:
        found["grammar"] = formats.ebnf(body.grammar)
    if len(found) > 1:
        first, second, *_ = found
        raise refused(second, f"cannot be combined with {first}; an answer has one form")
    return next(iter(found.values()), None)


def _parameters(tools: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any, str]]:
    """Name, schema and field of each tool."""
    found = []
    for i, tool in enumerate(tools):
        function, field = tool["function"], f"tools[{i}].function.parameters"
        schema = function.get("parameters") or NO_PARAMETERS
        strict = bool(function.get("strict"))
        found.append((function["name"], checked(schema, field, strict=strict, bare=True), field))
    return found

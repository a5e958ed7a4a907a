"""Chat messages as templates expect them, from what API clients send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nextfit.errors import RequestError

_REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing, three names in use


def plain(value: Any, where: str) -> Any:
    """A copy of `value` made of JSON's types alone, which have no methods a template could misuse.

    `where` names the request field in the refusal (RequestError) of anything else.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # an enumeration, for example
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {plain(k, where): plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise RequestError(f"{where} is of type {type(value).__name__}, expected a JSON value", where)


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as transformers hands them to a template. Raises RequestError.

    A key whose value is None is absent. Reasoning is found under `reasoning_content` (and `thinking`)
    whatever the client calls it. Arguments of tool calls, JSON text in OpenAI's API, are objects.
    """
    if not messages:
        raise RequestError("messages is empty, expected at least one message", "messages")
    return [_normalize(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalize(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is of type {type(message).__name__}, expected an object", where)
    result = {k: v for k, v in plain(message, where).items() if v is not None}
    reasoning = next((result[k] for k in _REASONING if k in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    calls = result.get("tool_calls")
    for i, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            place = f"{where}.tool_calls[{i}].function.arguments"
            function["arguments"] = read_arguments(function["arguments"], place)
    return result


def read_arguments(text: str, where: str) -> dict[str, Any]:
    """The arguments of a call, from JSON text; blank text is no arguments. Raises RequestError about field `where`."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{where}: is not JSON: {error}", where) from None
    if not isinstance(value, dict):
        raise RequestError(f"{where}: is a JSON {type(value).__name__}, expected an object", where)
    return value

"""What a client calls the field at fault: some bodies become chat requests, whose errors name the fields of chat."""

from __future__ import annotations

import re

_TOOL = r"tools\[(\d+)\]\.function"
_ANTHROPIC = {
    rf"{_TOOL}\.parameters": r"tools[\1].input_schema",
    _TOOL: r"tools[\1]",
    r"response_format\.json_schema": "output_config.format",
    "thinking_budget": "thinking.budget_tokens",
}
_RESPONSES = {
    _TOOL: r"tools[\1]",
    r"response_format\.json_schema": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}
_NAMES = {
    "/v1/messages": _ANTHROPIC,
    "/v1/messages/count_tokens": _ANTHROPIC,
    "/v1/responses": _RESPONSES,
}


def own_name(field: str, path: str) -> str:
    """The name on route `path` of a field of a chat request."""
    for pattern, name in _NAMES.get(path, {}).items():
        if found := re.match(rf"{pattern}\b", field):
            return found.expand(name) + field[found.end() :]
    return field

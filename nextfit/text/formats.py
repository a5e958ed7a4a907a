"""What answers may be held to, as text: the source of a grammar.

A source is JSON: `format`, a structural tag's format in xgrammar's own terms, and `fields`, the request fields that its
parts came from, to name the one at fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SPACE = 20  # most white space in a row between two parts of JSON, so that an answer cannot go on with nothing else
_MARKS = ["<parameter=", "</parameter>", "</function>", "</tool_call>"]  # no part of a value that is enforced


class Format(NamedTuple):
    """A format and the fields of the parts that a request wrote, in the order of the parts."""

    content: dict[str, Any]
    fields: tuple[str, ...]

    @property
    def source(self) -> str:
        return json.dumps({"format": self.content, "fields": self.fields})


def fields(source: str) -> list[str]:
    """The request fields that a grammar came from."""
    found: list[str] = json.loads(source)["fields"]
    return found


def json_schema(schema: Any, field: str) -> Format:
    """JSON that keeps to a schema."""
    return Format({"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": SPACE}, (field,))


def json_object() -> Format:
    """Any JSON object."""
    return json_schema({"type": "object", "additionalProperties": True}, "response_format")


def regex(pattern: str) -> Format:
    """Text that a regular expression matches as a whole."""
    return Format({"type": "regex", "pattern": pattern}, ("regex",))


def ebnf(grammar: str) -> Format:
    """Text of a grammar in the notation of llama.cpp's GBNF, from its rule `root`."""
    return Format({"type": "grammar", "grammar": grammar}, ("grammar",))


def calls(tools: Sequence[tuple[str, Mapping[str, Any], str]], *, single: bool) -> Format:
    """One or more tool calls as the model's template writes them, nothing else; `tools`: name, schema, field."""
    tags = [_call(name, schema) for name, schema, _ in tools]
    tagged = {"type": "tags_with_separator", "tags": tags, "separator": "\n"}
    fields = tuple(field for *_, field in tools)
    return Format({**tagged, "at_least_one": True, "stop_after_first": single}, fields)


def text_and_calls(tools: Sequence[tuple[str, Mapping[str, Any], str]], *, single: bool) -> Format:
    """Any text, and calls that keep to their schemas where it has some."""
    tags = [_call(name, schema) for name, schema, _ in tools]
    tagged = {"type": "triggered_tags", "triggers": ["<tool_call>\n<function="], "tags": tags}
    return Format({**tagged, "stop_after_first": single}, tuple(field for *_, field in tools))


def either(a: Format, b: Format) -> Format:
    return Format({"type": "or", "elements": [a.content, b.content]}, a.fields + b.fields)


def after_thought(answer: Format) -> Format:
    """The answer behind a thought's close token, which line breaks may separate."""
    lines = [{"type": "const_string", "value": breaks} for breaks in ("\n\n", "\n")]
    space = {"type": "optional", "content": {"type": "or", "elements": lines}}
    return Format({"type": "sequence", "elements": [space, answer.content]}, answer.fields)


def _call(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {
        "type": "json_schema",
        "style": "qwen_xml",
        "json_schema": schema,
        "max_whitespace_cnt": SPACE,
    }
    return {
        "type": "tag",
        "begin": f"<tool_call>\n<function={name}>\n",
        "content": {**arguments, "excludes": _MARKS},
        "end": "</function>\n</tool_call>",
    }

"""Answers as a model writes them, and what they consist of: `transcripts.txt`, read.

##### what it shows | options
the text
-----
what is expected, one event a line: reasoning and content as JSON, `call` and `open` (cut off) with their arguments
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextfit.text.events import Arguments, CallBegin, CallEnd, Content, Event, Reasoning, append
from nextfit.text.markup import MarkupReader
from nextfit.text.tools import Tools


def tool(name: str, root: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"properties": properties, **(root or {})}},
    }


INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
TOOLS = Tools(
    [
        tool("write_file", path=STRING, n=INTEGER),
        {"type": "function", "function": {"name": "now"}},
        tool("assist", query=STRING),
        tool(
            "tide_table",
            {"$defs": {"count": {"anyOf": [INTEGER, NULL]}}},
            harbour=STRING,
            days=INTEGER,
            height={"type": "number"},
            spring={"type": "boolean"},
            at={"type": "array", "items": INTEGER},
            options={"type": "object"},
            nothing={"type": ["null", "integer"]},
            unit={"enum": ["1", "m"]},
            unsaid={},
            note={"anyOf": [STRING, NULL]},
            mixed={"type": ["string", "integer"]},
            referred={"$ref": "#/$defs/count"},
            either={"oneOf": [{"type": "array"}, {"$ref": "#/$defs/none"}, STRING]},
        ),
    ]
)
NO_TOOLS = Tools()


@dataclass(frozen=True)
class Transcript:
    name: str
    text: str
    options: frozenset[str]
    events: list[Event]

    def reader(self) -> MarkupReader:
        tools = NO_TOOLS if "no-tools" in self.options else TOOLS
        return MarkupReader(tools, thinking="thinking" in self.options, single="single" in self.options)

    def read(self, pieces: Iterable[str]) -> list[Event]:
        return fold(self.reader(), pieces, "cut" in self.options)


def fold(reader: MarkupReader, pieces: Iterable[str], cut: bool) -> list[Event]:
    """All events of a text, equal neighbours joined."""
    events: list[Event] = []
    for piece in pieces:
        for event in reader.push(piece):
            append(events, event)
    for event in reader.finish(cut):
        append(events, event)
    return events


def _expected(lines: Iterable[str]) -> list[Event]:
    events: list[Event] = []
    calls = 0
    for line in lines:
        kind, _, rest = line.partition(" ")
        match kind:
            case "reasoning":
                events.append(Reasoning(json.loads(rest)))
            case "content":
                events.append(Content(json.loads(rest)))
            case "call" | "open":
                name, _, arguments = rest.partition(" ")
                events.append(CallBegin(calls, name))
                if arguments:
                    events.append(Arguments(calls, arguments))
                if kind == "call":
                    events.append(CallEnd(calls))
                calls += 1
    return events


def load() -> list[Transcript]:
    found = []
    for part in Path(__file__).with_suffix(".txt").read_text().split("##### ")[1:]:
        head, _, rest = part.partition("\n")
        name, _, options = head.partition(" | ")
        text, _, expected = rest.rpartition("-----\n")
        found.append(
            Transcript(
                name, text.removesuffix("\n"), frozenset(options.split()), _expected(expected.splitlines())
            )
        )
    return found


TRANSCRIPTS = load()

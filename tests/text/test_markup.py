"""Thinking, content and tool calls out of an answer's text, however it is cut into pieces."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from nextfit.text.events import Arguments, CallBegin, CallEnd, Content, Reasoning, Reply
from nextfit.text.markup import MarkupReader
from nextfit.text.tools import Parameters, Tools, as_json
from tests.text.fuzz_parsers import check, draw
from tests.text.splits import every_split
from tests.text.transcripts import NO_TOOLS, TOOLS, TRANSCRIPTS, Transcript

SHORT = 60  # characters; some longer ones are cut every way by `python -m tests.text.fuzz_parsers`
each = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=[t.name for t in TRANSCRIPTS])


def test_there_are_enough() -> None:
    assert len(TRANSCRIPTS) >= 60
    for keys in ({t.name for t in TRANSCRIPTS}, {(t.text, t.options) for t in TRANSCRIPTS}):
        assert len(keys) == len(TRANSCRIPTS)


@each
def test_transcript(transcript: Transcript) -> None:
    text, random = transcript.text, Random(1)
    assert transcript.read([text]) == transcript.events
    assert transcript.read(text) == transcript.events
    for i in range(1, len(text)):
        assert transcript.read([text[:i], text[i:]]) == transcript.events
    for _ in range(20):
        cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(1, 20)))
        pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert transcript.read(pieces) == transcript.events


@pytest.mark.parametrize("transcript", [t for t in TRANSCRIPTS if len(t.text) <= SHORT], ids=lambda t: t.name)
def test_every_split(transcript: Transcript) -> None:
    every_split(transcript)


def test_arguments_are_json() -> None:
    for transcript in TRANSCRIPTS:
        reply = Reply()
        for event in transcript.read([transcript.text]):
            reply.add(event)
        ended = {e.index for e in transcript.events if isinstance(e, CallEnd)}
        for index, call in enumerate(reply.calls):
            if index in ended:
                assert isinstance(json.loads(call.arguments), dict)
            else:
                with pytest.raises(ValueError):
                    json.loads(call.arguments)


def test_strings_and_thoughts_are_not_held_back() -> None:
    reader = MarkupReader(TOOLS, thinking=True)
    assert reader.push("a b") == [Reasoning("a b")]
    assert reader.push(" <think") == []
    assert reader.push("er></think>\n\nHi") == [Reasoning(" <thinker>"), Content("Hi")]
    assert reader.push("\n<tool_call>\n<function=assist>\n") == [Content("\n")]
    assert reader.push("<parameter=query>\nab\n") == [CallBegin(0, "assist"), Arguments(0, '{"query":"ab')]
    assert reader.push("c</para") == [Arguments(0, "\\nc")]
    assert reader.push("meter>\n</function>\n</tool_call>") == []
    assert reader.finish(cut=False) == [Arguments(0, '"}'), CallEnd(0)]


def test_done_after_one_call() -> None:
    reader = MarkupReader(TOOLS, single=True)
    reader.push("<tool_call><function=now></function>")
    assert reader.done
    assert reader.push("</tool_call><tool_call><function=now></function></tool_call> more") == []
    assert reader.done
    assert reader.finish(cut=False) == []


def test_what_may_become_content_is_counted() -> None:
    reader = MarkupReader(TOOLS)
    for piece, held in (
        ("a <", 1),
        ("tool_call>", 11),
        ("\n", 12),
        ("<function=now>", 26),
        ("x", 0),
        ("</think", 7),
    ):
        reader.push(piece)
        assert reader.held == held
    assert reader.finish(cut=True) == [Content("</think")]


def test_fuzz() -> None:
    random = Random(7)
    for _ in range(5_000):
        check(*draw(random))


def test_long_white_space_and_marks_take_linear_time() -> None:
    """Each of these would take long if a piece cost as much as all before it."""
    start = "<tool_call><function=tide_table><parameter=at>"
    for before, piece in (
        ("<tool_call>", "\n"),
        (start + "</parameter>", "\n"),
        (start, "["),
        (start, "</parameter>"),
        ("<think>", " "),
        ("<think><tool_call>", " "),
        ("", "<function="),
        ("<think>", "`"),
    ):
        reader = MarkupReader(TOOLS)
        reader.push(before)
        for _ in range(10_000):
            reader.push(piece)
        reader.finish(cut=False)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, "string"),
        (True, "string"),
        ({"type": "number"}, "number integer"),
        ({"type": ["integer", "null"]}, "integer null"),
        ({"type": "objekt"}, "string"),
        ({"type": {"a": 1}}, "string"),
        ({"type": "integer", "nullable": True}, "integer null"),
        ({"enum": ["a", 1]}, "string integer number"),
        ({"const": None}, "null"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/flag"}]}, "integer boolean"),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "number"}]}, "integer"),
        ({"$ref": "#/$defs/loop"}, "string"),
        ({"$ref": "#/$defs/deep"}, "array"),
        ({"$ref": "#/$defs/a~1b/1"}, "boolean"),
        ({"$ref": "#/$defs/a~1b/9"}, "string"),
        ({"$ref": "http://example.org/x"}, "string"),
        ({"$ref": "#"}, "object"),
    ],
)
def test_types(schema: object, types: str) -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}
    deep = {"anyOf": [{"$ref": "#/$defs/loop"}, {"anyOf": [{"oneOf": [{"type": "array"}]}]}]}
    definitions = {"flag": {"type": "boolean"}, "loop": loop, "deep": deep, "a/b": [0, {"type": "boolean"}]}
    root = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    assert Parameters(root).types("x") == set(types.split())


def test_parameters_without_a_schema() -> None:
    says_nothing: list[Any] = [None, [], 3, {"properties": []}, {"properties": {"y": {"type": "integer"}}}]
    for schema in says_nothing:
        assert Parameters(schema).types("x") == {"string"}
    assert Parameters({"additionalProperties": {"type": "integer"}}).types("x") == {"integer"}


def test_a_hostile_schema_is_read_once() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [{"$ref": "#/properties/x"}, {"$ref": "#"}] * 1_000
    wide = {"properties": {"x": schema}, "anyOf": [schema, {"type": "integer"}]}
    assert Parameters(wide).types("x") == {"integer"}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(900):
        deep = {"anyOf": [deep]}
    assert Parameters({"properties": {"x": deep}}).types("x") == {"string"}


def test_deep_json_is_text() -> None:
    deep = "[" * 100_000
    assert json.loads(as_json(deep, frozenset({"array"}))) == deep
    assert as_json("9" * 10_000, frozenset({"integer"})) == "9" * 10_000
    assert as_json("1e999", frozenset({"number"})) == "1e999"
    assert not NO_TOOLS and Tools([]) is not NO_TOOLS

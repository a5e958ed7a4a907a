"""Schemas as they are held: what a grammar cannot hold is refused, and what is written under it keeps to the schema."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from nextfit.errors import RequestError
from nextfit.text import MarkupReader, Tools, formats
from nextfit.text.events import Reply
from nextfit.text.formats import Format
from nextfit.text.grammar import Grammars
from nextfit.text.schema import checked
from tests.support.scripted_server import bundled

TOKENIZER = bundled()[1]
END = TOKENIZER.end_ids[0]
SMALL = {"type": "integer", "minimum": 0, "maximum": 20}
SHORT = {"type": "string", "maxLength": 4}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    found = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    yield found
    found.close()


def walk(grammars: Grammars, form: Format, rng: random.Random, most: int = 200) -> str | None:
    """A text that the form allows, token by token at random; None if it is not complete after `most` tokens."""
    matcher, tokens = grammars.get(form.source).result().matcher([END]), list[int]()
    while len(tokens) < most:
        mask = matcher.mask()
        allowed = [*range(TOKENIZER.vocab_size)] if mask is None else np.flatnonzero(mask).tolist()
        token = END if END in allowed and rng.random() < 0.5 else rng.choice(allowed)
        assert matcher.accept(token)
        if token == END:
            return TOKENIZER.decode(tokens)
        tokens.append(token)
    return None


HELD: list[dict[str, Any]] = [
    {"type": "array", "prefixItems": [SMALL, SHORT], "items": False},
    {"type": "array", "prefixItems": [SMALL], "items": SHORT, "minItems": 2, "maxItems": 4},
    {"type": "object", "patternProperties": {"^x_[a-c]{1,2}$": SHORT}, "maxProperties": 3},
    {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": SMALL, "maxProperties": 2},
    {"type": ["integer", "string"], "maxLength": 3, "minimum": 2, "maximum": 7},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "object", "properties": {"a": SMALL, "b": SMALL, "c": SMALL}, "minProperties": 2, "maxProperties": 2},
    {"type": "object", "properties": {"a": SMALL, "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"]},
    {"$ref": "#/$defs/a~1b", "description": "a note", "default": 1, "$defs": {"a/b": SMALL}},
    {"allOf": [SMALL]},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "object", "properties": {'a"b\\c\n': SMALL}, "required": ['a"b\\c\n']},
    {"type": "object", "properties": {"v": SMALL, "k": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", HELD, ids=lambda s: ",".join(s))
def test_what_is_held(schema: dict[str, Any], grammars: Grammars) -> None:
    rng, form = random.Random(0), formats.json_schema(checked(schema, "s"), "s")
    found = [text for _ in range(12) if (text := walk(grammars, form, rng)) is not None]
    assert len(found) > 2
    for text in found:
        Draft202012Validator(schema).validate(json.loads(text))


def test_strings_of_a_length(grammars: Grammars) -> None:
    """Every character and the short escapes; not what JSON has to escape, nor halves of pairs."""
    form = formats.json_schema(checked({"type": "string", "minLength": 1, "maxLength": 6}, "s"), "s")
    bytes_of = {TOKENIZER.token_bytes(id): id for id in range(TOKENIZER.vocab_size)}
    for text, held in {
        '"aé"': True, '"🦙🦙한국"': True, '"a\\n\\"b"': True, '"[]^-"': True, '"\U0010ffff\ue000"': True,
        '""': False, '"1234567"': False, '"a\nb"': False, '"a\tb"': False, '"a"b"': False,
    }.items():  # fmt: skip
        matcher = grammars.get(form.source).result().matcher([END])
        assert all(map(matcher.accept, [*TOKENIZER.encode(text), END])) == held, text
    matcher = grammars.get(form.source).result().matcher([END])
    assert [matcher.accept(bytes_of[b]) for b in (b'"', b"\xed", b"\xa0")] == [True, True, False]


NOT_HELD: list[tuple[dict[str, Any], str]] = [
    ({"not": {}}, "'not'"),
    ({"type": "array", "items": {"contains": {}}}, r"s\.items: 'contains'"),
    ({"properties": {"a": {"uniqueItems": True}}}, r"s\.properties\.a: 'uniqueItems'"),
    ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": SMALL}}, "'maximum' beside '\\$ref'"),
    ({"anyOf": [SMALL], "properties": {}}, "'properties' beside 'anyOf'"),
    ({"allOf": [SMALL, {"type": "null"}]}, "more than one"),
    ({"$ref": "http://a/b"}, "'http://a/b'"),
    ({"anyOf": [{"type": "string", "enum": ["a", 5]}]}, r"anyOf\[0\]: the value 5"),
    ({"type": "integer", "const": True}, "the value True"),
    ({"enum": ["a"], "maxLength": 3}, "'maxLength' beside 'enum'"),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
    ({"type": "string", "pattern": "a+", "maxLength": 3}, "a length beside 'pattern'"),
    ({"type": "string", "pattern": '"'}, "quotes"),
    ({"patternProperties": {"\\x41": {}}}, "quotes"),
    ({"properties": {"a": {}}, "required": ["b"]}, "'b' is required"),
    ({"minProperties": 1, "additionalProperties": True}, "minProperties"),
]


@pytest.mark.parametrize(("schema", "why"), NOT_HELD, ids=lambda s: str(s)[:30])
def test_what_is_not(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why) as error:
        checked(schema, "s")
    assert error.value.param == "s" and str(error.value).startswith("s")
    assert checked(schema, "s", strict=False) == schema


def test_bounds() -> None:
    deep: Any = {}
    for _ in range(100000):
        deep = {"items": deep}
    for schema, why in (
        (deep, "100001 levels"),
        ({"const": "x" * 300000}, "bytes"),
        ({"const": float("nan")}, ""),
    ):
        for strict in (True, False):
            if why:
                with pytest.raises(RequestError, match=why):
                    checked(schema, "s", strict=strict)
    for odd in (True, None, 5, [1], {"properties": [1], "required": 5, "enum": 5, "type": {}, "anyOf": {}}):
        checked(odd, "s", strict=False)


PARAMETERS: list[dict[str, Any]] = [
    SMALL, {"enum": ["ab", "cd"]}, {"const": "x y"}, {"type": "string", "pattern": "^[a-c]{2}$"}, {"type": "null"},
    {"anyOf": [{"type": "string", "pattern": "^[a-c]{2}$"}, {"type": "null"}]}, {"enum": ["a", 1, None, True]},
    {"type": "object", "properties": {"a": SMALL, "s": SHORT}, "required": ["a", "s"]}, {"$ref": "#/$defs/s"},
    {"type": "array", "items": SHORT, "maxItems": 2}, {"type": "string", "format": "date"},
    {"anyOf": [{"type": "object", "properties": {"a": SMALL}, "required": ["a"]}, {"type": "string", "enum": ["z"]}]},
]  # fmt: skip


@pytest.mark.parametrize("parameter", PARAMETERS, ids=str)
def test_calls_are_read_as_they_were_held(parameter: dict[str, Any], grammars: Grammars) -> None:
    """What the grammar of a call allows, the reader takes apart into arguments of the schema."""
    schema = {
        "type": "object",
        "properties": {"p": parameter, "q": SMALL},
        "required": ["p"],
        "$defs": {"s": {"type": "string", "enum": ["q", "r"]}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    form = formats.calls([("f", checked(schema, "t", bare=True), "t")], single=True)
    rng, read = random.Random(1), 0
    for _ in range(8):
        text = walk(grammars, form, rng)
        if text is None:
            continue
        reader, reply = MarkupReader(Tools([tool])), Reply()
        for event in [*reader.push(text), *reader.finish(cut=False)]:
            reply.add(event)
        (call,) = reply.calls
        Draft202012Validator(schema).validate(json.loads(call.arguments))
        assert call.name == "f" and reply.content == ""
        read += 1
    assert read > 4

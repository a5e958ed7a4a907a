"""Answers that keep to a grammar: whole, and the same whatever is drafted, cut short by nothing but their limit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request
from nextfit.errors import RequestError
from nextfit.text import formats, grammar
from nextfit.text.formats import Format
from nextfit.text.grammar import Grammars
from nextfit.text.schema import checked
from tests.support.random_schemas import random_schema
from tests.support.scripted_model import (
    ScriptedEngine,
    ScriptedModel,
    Wrong,
    never,
    wrong_at,
    wrong_sometimes,
)
from tests.support.scripted_server import bundled

TOKENIZER = bundled()[1]
END, CLOSE = TOKENIZER.end_ids[0], TOKENIZER.encode("</think>")[0]
PROMPT = [5] * 20
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
FORMAT = formats.json_schema(SCHEMA, "schema")
JSON = '{"name": "boat 🦙", "tags": ["red", "green"], "size": 41}'


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    found = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    yield found
    found.close()


def engine(script: Sequence[int], depth: int = 4, wrong: Wrong = never, **limits: Any) -> ScriptedEngine:
    model = ScriptedModel(TOKENIZER.vocab_size, END, wrong)
    return ScriptedEngine(lambda prompt: script, model=model, tokens_per_step=depth + 1, **limits)


def add(e: ScriptedEngine, grammars: Grammars, form: Format, id: str = "a", **params: Any) -> None:
    settings = SamplingParams(grammar=form.source, **{"temperature": 0, **params})
    e.add(Request(id, PROMPT, settings), grammars.get(form.source).result())


def finish(e: ScriptedEngine) -> dict[str, tuple[list[int], Output]]:
    """Tokens and last output of every request."""
    tokens: dict[str, list[int]] = {}
    last = {}
    while e.has_work():
        for out in e.step():
            tokens.setdefault(out.request_id, []).extend(t.token for t in out.tokens)
            last[out.request_id] = out
        e.scheduler.check()
    return {id: (tokens[id], out) for id, out in last.items()}


def answer(
    script: str, grammars: Grammars, form: Format = FORMAT, **options: Any
) -> tuple[list[int], Output]:
    settings = {k: options.pop(k) for k in ("depth", "wrong") if k in options}
    e = engine(TOKENIZER.encode(script), **settings)
    add(e, grammars, form, **options)
    return finish(e)["a"]


def kept(tokens: list[int]) -> Any:
    """What the answer says; it keeps to SCHEMA."""
    value = json.loads(TOKENIZER.decode(tokens))
    assert list(value) == ["name", "tags", "size"]
    assert len(value["name"]) <= 12 and 0 <= value["size"] <= 99
    assert 1 <= len(value["tags"]) <= 3 and set(value["tags"]) <= {"red", "green"}
    return value


def test_what_keeps_to_it_is_left_alone(grammars: Grammars) -> None:
    for depth in (0, 1, 4, 8):
        tokens, last = answer(JSON, grammars, depth=depth)
        assert TOKENIZER.decode(tokens) == JSON
        assert (last.finish_reason, last.stop_token) == ("stop", END)
        assert last.stats is not None and (last.stats.accepted > 10) == (depth > 0)


@pytest.mark.parametrize(
    "script", ["Sure! Here it is.", '{"name": "a name that is too long", "tags": []}', JSON[:30]]
)
def test_what_does_not_is_made_to(script: str, grammars: Grammars) -> None:
    """The same answer whatever is drafted, greedy or sampled; every draft is one that could be right."""
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 3.0, "seed": 5, "top_k": 40, "top_p": 0.9, "frequency_penalty": 1.0},
    ]
    for params in settings:
        found = [
            answer(script, grammars, depth=depth, wrong=wrong, **params)
            for depth, wrong in ((0, never), (4, never), (4, wrong_at(1)), (8, wrong_sometimes(0.4)))
        ]
        kept(found[0][0])
        assert all(tokens == found[0][0] for tokens, _ in found)
        assert {last.finish_reason for _, last in found} == {"stop"}
        assert all(last.stats is not None and last.stats.accepted > 0 for _, last in found[1:])


def test_an_answer_that_is_cut(grammars: Grammars) -> None:
    for depth in (0, 4):
        tokens, last = answer(JSON, grammars, depth=depth, max_tokens=9)
        assert (len(tokens), last.finish_reason) == (9, "length")
        assert tokens == TOKENIZER.encode(JSON)[:9]


def test_b33_behind_a_thought(grammars: Grammars) -> None:
    """It begins after the close token; what is in the thought is free, but it cannot be the end of the answer."""
    form = formats.after_thought(FORMAT)
    for depth in (0, 4):
        for thought in ('Hm {"name"', "</thinker>"):
            script = f"{thought}</think>\n\n{JSON}"
            tokens, _ = answer(script, grammars, form, depth=depth, thought_end=CLOSE)
            assert TOKENIZER.decode(tokens) == script
        tokens, last = answer("Hm.", grammars, form, depth=depth, thought_end=CLOSE, thinking_budget=9)
        at = tokens.index(CLOSE)
        assert (at, last.finish_reason) == (9, "stop")
        kept(tokens[at + 1 :])


def test_neighbours_and_preemption(grammars: Grammars) -> None:
    """Requests with and without, that push each other out of the pages, each as alone."""
    alone = answer("Sure!", grammars, temperature=1.0, seed=3)[0]
    e = engine(TOKENIZER.encode("Sure!"), sequences=4, context=96, page_size=4, kv_tokens=1, answer_reserve=4)
    for i in range(3):
        add(e, grammars, FORMAT, f"g{i}", temperature=1.0, seed=3, choice=0)
        e.add(Request(f"f{i}", PROMPT, SamplingParams(temperature=0)))
    found = finish(e)
    assert e.scheduler.preemptions > 0
    for i in range(3):
        assert found[f"g{i}"][0] == alone
        assert TOKENIZER.decode(found[f"f{i}"][0]) == "Sure!"


def test_ends(grammars: Grammars) -> None:
    """The end comes when the grammar is satisfied: not sooner, and not later for other settings' sake."""
    form = formats.regex("(ab){2,3}")
    settings: list[dict[str, Any]] = [
        {},
        {"ignore_eos": True},
        {"min_tokens": 30},
        {"stop_token_ids": tuple(TOKENIZER.encode("b"))},
    ]
    for params in settings:
        for depth in (0, 4):
            for script, text in (("ab", "abab"), ("ababab", "ababab"), ("abababab", "ababab"), ("x", "abab")):
                tokens, last = answer(script, grammars, form, depth=depth, **params)
                if "min_tokens" in params:
                    text = "ababab"
                if "stop_token_ids" in params:  # ends it anywhere, as a stop string does
                    assert "ababab".startswith(TOKENIZER.decode(tokens))
                else:
                    assert TOKENIZER.decode(tokens) == text
                assert last.finish_reason == "stop"


def test_a_grammar_that_ends_nowhere(grammars: Grammars) -> None:
    """The request fails, alone."""
    e = engine(TOKENIZER.encode("abc"))
    add(e, grammars, formats.ebnf('root ::= "a" x\nx ::= "b" x'), max_tokens=30)
    add(e, grammars, formats.ebnf('root ::= "ab" x\nx ::= y "c"\ny ::= "d" z\nz ::= z'), "b")
    add(e, grammars, FORMAT, "c")
    found = finish(e)
    assert found["a"][1].finish_reason == "length"
    assert found["b"][1].finish_reason == "error" and "allows no next token" in (found["b"][1].error or "")
    assert found["b"][1].param == "grammar"
    kept(found["c"][0])


def test_a_grammar_that_gets_slower(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ambiguous ones cost more with every token; the answer is given up before its neighbours wait for long."""
    monkeypatch.setattr(grammar, "PATIENCE", 0.1)
    monkeypatch.setattr(grammar, "PER_TOKEN", 0.0)
    for depth in (0, 4):
        e = engine(TOKENIZER.encode("a") * 600, depth)
        add(e, grammars, formats.ebnf('root ::= root root | "a"'))
        e.add(Request("b", PROMPT, SamplingParams(temperature=0)))
        found = finish(e)
        assert found["a"][1].finish_reason == "error" and "too long" in (found["a"][1].error or "")
        assert 10 < len(found["a"][0]) < 590 and len(found["b"][0]) == 600


def test_random_schemas(grammars: Grammars) -> None:
    """Any token that is allowed is as likely as any other; what comes is whole and valid, and drafts change nothing."""
    schemas = [random_schema(seed) for seed in range(12)]
    found = []
    for depth, wrong in ((0, never), (4, wrong_sometimes(0.3))):
        e = engine([], depth, wrong, context=2048, sequences=8)
        for i, one in enumerate(schemas):
            add(e, grammars, formats.json_schema(checked(one, "s"), "s"), str(i), temperature=1.0, seed=i)
        found.append(finish(e))
    for i, one in enumerate(schemas):
        (tokens, last), (drafted, other) = [answers[str(i)] for answers in found]
        Draft202012Validator(one).validate(json.loads(TOKENIZER.decode(tokens)))
        assert last.finish_reason == "stop" and tokens == drafted
        assert other.stats is not None and other.stats.accepted > 0


def test_refusals(grammars: Grammars) -> None:
    for form, field in (
        (formats.json_schema({"type": "objekt"}, "here"), "here"),
        (formats.regex("("), "regex"),
        (formats.ebnf("root ::= root"), "grammar"),
    ):
        with pytest.raises(RequestError, match=field) as error:
            grammars.get(form.source).result()
        assert error.value.param == field
    with pytest.raises(RequestError, match="compiled"):
        engine([]).add(Request("a", PROMPT, SamplingParams(grammar=FORMAT.source)))

"""The field at fault has the client's own name, though bodies of messages and responses become chat requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextfit.server.anthropic_schemas import MessagesRequest
from nextfit.server.fields import own_name
from nextfit.server.responses_schemas import ResponsesRequest
from nextfit.server.schemas import Body
from nextfit.server.service import Service
from tests.server.scripted import running
from tests.server.test_refusals import HI, JSON, nested, refusal
from tests.support.scripted_server import load

OPEN = {"type": "string", "pattern": "("}  # only the grammar's compiler sees what is wrong
UNIQUE = {"type": "array", "uniqueItems": True}
LONG = "x" * 20_000


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        running(Service(load({"hi": "Ho."}, tokens_per_step=4, context=4096))) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def theirs(schema: Any) -> dict[str, Any]:
    return {"tools": [{"name": "a"}, {"name": "b", "input_schema": schema, "strict": True}]}


def form(schema: Any) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": 5000}, "max_tokens: 5000 and "),
        ({"messages": [{"role": "user", "content": LONG}]}, "messages: 20065 tokens"),
        ({"system": LONG}, "messages: "),
        ({"temperature": 101}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"top_k": -1}, "top_k: "),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences: "),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]: "),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens: "),
        ({"thinking": {"type": "maybe"}}, "thinking.type: "),
        ({"output_config": {"effort": "huge"}}, "output_config.effort: "),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format: "),
        (form(nested(70)), "output_config.format.schema: is nested 141 levels"),
        (form(UNIQUE), "output_config.format.schema: 'uniqueItems'"),
        (form(OPEN), "output_config.format.schema: Regex"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name: is 'a b'"),
        ({"tools": [{"name": "a"}, {"name": "a"}]}, "tools[1].name: 'a'"),
        (theirs([]), "tools[1].input_schema: "),
        (theirs(nested(70)), "tools[1].input_schema: is nested 141 levels"),
        (theirs({"properties": {"b": UNIQUE}}), "tools[1].input_schema.properties.b: 'uniqueItems'"),
        (theirs({"properties": {"b": OPEN}}), "tools[1].input_schema: Regex"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: demands a call, but there are no tools"),
        ({"tool_choice": {"type": "tool", "name": "a"}}, "tool_choice: 'a' is not among tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: "),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type: "),
    ],
)
def test_messages(client: httpx.Client, fields: dict[str, Any], told: str) -> None:
    answer = client.post("/v1/messages", json={"messages": HI, "max_tokens": 5, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(told)
    counted = client.post("/v1/messages/count_tokens", json={"messages": HI, **fields})
    if counted.status_code != 200:  # what only the engine refuses, and fields that it has not
        assert counted.json()["error"]["message"].startswith(told)


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "strict": True, **fields}


def called(arguments: str) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "a", "name": "b", "arguments": arguments}
    return {"instructions": "Brief.", "input": [*HI, call]}


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"max_output_tokens": 5000}, "max_output_tokens", ": 5000 and "),
        ({"input": LONG}, "input", ": 20065 tokens"),
        ({"instructions": LONG}, "input", ": "),
        ({"input": [{"role": "system", "content": "only"}]}, "input", None),
        (called("{x"), "input[1].arguments", ": is not JSON"),
        (called("[]"), "input[1].arguments", ": is a JSON list"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", ": "),
        ({"text": {"format": {}}}, "text.format.type", ": required"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", ": "),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", ": required"),
        ({"text": {"format": {"type": "json_schema", "name": 5, "schema": {}}}}, "text.format.name", ": "),
        ({"text": {"format": {"type": "json_schema", "schema": nested(70)}}}, "text.format.schema", ": is nested"),
        ({"text": {"format": {"type": "json_schema", "schema": OPEN}}}, "text.format.schema", ": Regex"),
        ({"tools": [function()]}, "tools[0].name", ": is None"),
        ({"tools": [function(name="a"), function(name="a")]}, "tools[1].name", ": 'a' is declared twice"),
        ({"tools": [function(name="a", parameters=[])]}, "tools[0].parameters", ": is []"),
        ({"tools": [function(name="a", parameters=nested(70))]}, "tools[0].parameters", ": is nested"),
        ({"tools": [function(name="a", parameters={"properties": {"b": OPEN}})]}, "tools[0].parameters", ": Regex"),
        ({"tool_choice": "required"}, "tool_choice", ": demands a call"),
        ({"tools": [function(name="a")], "tool_choice": "sometimes"}, "tool_choice", ": is 'sometimes'"),
        ({"tools": [function(name="a")], "tool_choice": function()}, "tool_choice.name", ": "),
        ({"tools": [function(name="a")], "tool_choice": function(name="b")}, "tool_choice", ": 'b'"),
    ],
)  # fmt: skip
def test_responses(client: httpx.Client, fields: dict[str, Any], param: str, told: str | None) -> None:
    for stream in (False, True):
        body = {"input": "hi", "max_output_tokens": 5, "stream": stream, **fields}
        error = refusal(client.post("/v1/responses", json=body), 400)
        assert error["param"] == param
        assert error["message"].startswith("chat template: " if told is None else f"{param}{told}")


def test_the_form_is_told_as_it_was_asked_for(client: httpx.Client) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": None}
    for asked in ({"type": "json_object"}, schema):
        body = {"input": "hi", "max_output_tokens": 1, "text": {"format": asked}}
        assert client.post("/v1/responses", json=body).json()["text"] == {"format": asked}


def test_names_of_other_routes_stay() -> None:
    for field in ("max_tokens", "messages[0].content", "tools[0].function.name"):
        assert own_name(field, "/v1/chat/completions") == field
    assert own_name("messages_of_mine", "/v1/responses") == "messages_of_mine"


ROUTES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/messages": (MessagesRequest, {"messages": HI, "max_tokens": 3}),
    "/v1/responses": (ResponsesRequest, {"input": "hi", "max_output_tokens": 3}),
}
TRANSLATED = {
    "messages",
    "system",
    "thinking",
    "output_config",
    "tools",
    "tool_choice",
    "input",
    "reasoning",
    "text",
}
PART = st.dictionaries(
    st.sampled_from(["type", "name", "role", "content", "text", "format", "schema", "input", "arguments"]),
    JSON | st.sampled_from(["function", "json_schema", "user", "assistant", "tool_use", "message"]),
    max_size=5,
)
VALUE = st.sampled_from(
    [JSON, PART, st.lists(PART, max_size=2), st.fixed_dictionaries({"format": PART})]
).flatmap(lambda kind: kind)


@pytest.mark.parametrize("path", list(ROUTES))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_body_is_a_fault_of_ours(client: httpx.Client, path: str, data: st.DataObject) -> None:
    model, body = ROUTES[path]
    names = st.sampled_from(sorted(TRANSLATED & {*model.model_fields}))
    fields = data.draw(st.dictionaries(names, VALUE, min_size=1, max_size=3))
    sent = json.dumps({**body, **fields})
    answer = client.post(path, content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404), answer.text

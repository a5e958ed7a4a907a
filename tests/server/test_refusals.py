"""Every answer other than 2xx: the status, OpenAI's shape, and the field at fault."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextfit.server import errors
from nextfit.server.app import create_app
from nextfit.server.config import HttpConfig
from nextfit.server.schemas import ChatRequest, CompletionRequest
from nextfit.server.service import Service
from tests.server.scripted import ScriptedEngine, live, load, says, wait_for

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def schema(content: Any = None) -> dict[str, Any]:
    """A response format."""
    return {"type": "json_schema", "json_schema": {"name": "x"} if content is None else {"schema": content}}


def nested(levels: int) -> dict[str, Any]:
    """A schema of so many objects in each other."""
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"properties": {"a": found}}
    return found


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "found"),
    [
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"temperature": -0.1}, "temperature", "-0.1"),
        ({"max_tokens": -1}, "max_tokens", "-1"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": 1.5}, "max_tokens", "1.5"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens", "'5'"),
        ({"top_p": 0}, "top_p", "0"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"min_p": 2}, "min_p", "2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "0"),
        ({"n": 0}, "n", "0"),
        ({"n": 17}, "n", "17"),
        ({"n": True}, "n", "True"),
        ({"seed": "a"}, "seed", "'a'"),
        ({"stream": "yes"}, "stream", "'yes'"),
        ({"stop": 5}, "stop", "5"),
        ({"stop": ["a", 3]}, "stop[1]", "3"),
        ({"stop": ""}, "stop", "''"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "101"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "21"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "4"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'huge'"),
        ({"stream_options": []}, "stream_options", "[]"),
        ({"messages": []}, "messages", "[]"),
        ({"messages": "hi"}, "messages", "'hi'"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'robot'"),
        ({"messages": [*HI, {"role": "user", "content": 5}]}, "messages[1].content", "5"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0]", "'x'"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages", "No user query found."),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "'a b'"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name", "twice"),
        ({"tools": [tool("a", [])]}, "tools[0].function.parameters", "[]"),
        ({"tools": [tool("a")], "tool_choice": named("b")}, "tool_choice", "'b' is not among tools"),
        ({"tools": [tool("a")], "tool_choice": "sometimes"}, "tool_choice", "'sometimes'"),
        ({"tools": [tool("a")], "tool_choice": {"type": "function"}}, "tool_choice", "function"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"enable_thinking": "no"}, "enable_thinking", "'no'"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": schema()}, "response_format.json_schema.schema", "missing"),
        ({"response_format": schema(nested(70))}, "response_format.json_schema.schema", "141 levels"),
        ({"response_format": schema({"const": "x" * 300000})}, "response_format.json_schema.schema", "bytes"),
        ({"response_format": schema({"uniqueItems": True})}, "response_format.json_schema.schema", "uniqueItems"),
        ({"response_format": schema({"type": "object"}), "regex": "a"}, "regex", "response_format"),
        ({"grammar": "root ::= a", "regex": "a"}, "grammar", "regex"),
        ({"regex": ""}, "regex", "1"),
        (
            {"tools": [tool("a", nested(70))], "tool_choice": named("a")},
            "tools[0].function.parameters",
            "141 levels",
        ),
        ({"thinking_budget": -1}, "thinking_budget", "-1"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
    ],
)  # fmt: skip
def test_chat_fields(client: httpx.Client, fields: dict[str, Any], param: str, found: str) -> None:
    error = refusal(client.post(CHAT, json={"messages": HI, **fields}), 400)
    assert error["param"] == param
    assert found in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [2**40]}, "prompt[0]"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({}, "prompt"),
    ],
)
def test_completion_fields(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refusal(client.post(TEXT, json=fields), 400)["param"] == param


def test_nan_is_no_number(client: httpx.Client) -> None:
    body = '{"prompt":"a","temperature":NaN}'
    answer = client.post(TEXT, content=body, headers={"Content-Type": "application/json"})
    assert refusal(answer, 400)["param"] == "temperature"


@pytest.mark.parametrize("body", ["", "x" * 10, "{1", "[]", '"a"', "nul", "\xff"])
def test_body_is_not_a_json_object(client: httpx.Client, body: str) -> None:
    answer = client.post(TEXT, content=body.encode("latin-1"), headers={"Content-Type": "application/json"})
    refusal(answer, 400)


def test_wrong_content_type_says_so(client: httpx.Client) -> None:
    answer = client.post(TEXT, content='{"prompt":"a"}', headers={"Content-Type": "text/plain"})
    assert "application/json, not text/plain" in refusal(answer, 400)["message"]


def test_no_such_route_or_method(client: httpx.Client) -> None:
    assert "/v2/nothing" in refusal(client.get("/v2/nothing"), 404)["message"]
    assert "GET" in refusal(client.get(CHAT), 405)["message"]
    refusal(client.post("/health"), 405)


def test_unknown_model(client: httpx.Client) -> None:
    error = refusal(client.post(TEXT, json={"prompt": "a", "model": "gpt-5"}), 404)
    assert error["code"] == "model_not_found"
    assert "'nano'" in error["message"]


def test_prompt_that_fills_the_context(client: httpx.Client) -> None:
    error = refusal(client.post(TEXT, json={"prompt": [65] * 256}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]
    assert client.post(TEXT, json={"prompt": [65] * 255}).status_code == 200


def test_what_the_engine_refuses(client: httpx.Client, engine: ScriptedEngine) -> None:
    for stream in (False, True):
        error = refusal(client.post(TEXT, json={"prompt": ["ok", "!"], "stream": stream}), 400)
        assert error["param"] == "max_tokens"
    wait_for(lambda: not engine.running)


def test_a_request_that_fails_fails_alone(client: httpx.Client) -> None:
    assert refusal(client.post(TEXT, json={"prompt": "?"}), 500)["message"] == "the draft head gave NaN"
    streamed = client.post(TEXT, json={"prompt": "?", "stream": True})
    assert '{"error":{"message":"the draft head gave NaN"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert client.post(TEXT, json={"prompt": "a"}).status_code == 200


def test_no_template() -> None:
    with live(ScriptedEngine(says("x")), template=None) as url:
        assert "/v1/completions" in refusal(httpx.post(f"{url}{CHAT}", json={"messages": HI}), 400)["message"]


@pytest.mark.anyio
async def test_faults_of_ours_keep_their_details() -> None:
    app = create_app(Service(load(ScriptedEngine(says("x")))), HttpConfig())

    @app.get("/broken")
    async def broken() -> None:
        raise ValueError("a secret")

    error = refusal(await ask(app, "/broken"), 500)
    assert "secret" not in error["message"]
    assert "ValueError" in error["message"]


async def ask(app: FastAPI, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"stream"})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([CHAT, TEXT]), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_no_body_is_a_fault_of_ours(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": HI, "prompt": "a", **fields})
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        refusal(answer, answer.status_code)


def test_the_field_is_told_whatever_pydantic_calls_it() -> None:
    assert errors._field(("body", "stop", "list[constrained-str]", 1)) == "stop[1]"
    assert errors._field(("body", "messages", 0, "content", "str")) == "messages[0].content"
    assert errors._field(("body",)) is None

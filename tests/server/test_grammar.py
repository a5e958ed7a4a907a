"""The form of answers over HTTP: calls that are demanded, JSON, patterns; case A17 and B33, hostile ones A19.

The model wants to say something else; where it may not, it says what is second best.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from nextfit.server.service import Service
from nextfit.text import grammar
from nextfit.text.grammar import Grammars
from tests.server import test_anthropic, test_responses
from tests.server.scripted import running
from tests.server.test_conversation import ask
from tests.server.test_refusals import named, schema, tool
from tests.support.scripted_server import build, bundled, load_here

TOKENIZER = bundled()[1]
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, seconds=1)

ASSIST = "<tool_call>\n<function=assist>\n<parameter=query>\nships\n</parameter>\n</function>\n</tool_call>"
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
JSON = '{"name": "boat", "size": 3}'
HM = "Hm.</think>\n\n"
ANSWERS: Any = {
    "plain": ["hi", ASSIST, NOW, JSON, "2026-12-01"],
    "thought": [f"{HM}hi", *(f"{HM}{other}" for other in (ASSIST, NOW, JSON, "2026-12-01"))],
    "twice": ["hi", f"{ASSIST}\n{NOW}"],
    "wrong": [
        "hi",
        "<tool_call>\n<function=sum>\n<parameter=n>\nmany\n</parameter>\n</function>\n</tool_call>",
    ],
}
ASK = tool("assist", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})
SUM = tool("sum", {"type": "object", "properties": {"n": {"enum": [3, 7]}}, "required": ["n"]})
TOOLS: Any = [ASK, tool("now", {"type": "object", "properties": {}})]
OFF = {"extra_body": {"enable_thinking": False}}
GREEDY = {"temperature": 0}
BOAT: Any = {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}
BOAT = {**BOAT, "required": ["name", "size"], "additionalProperties": False}


@pytest.fixture(scope="module", autouse=True)
def compiler() -> Iterator[None]:
    yield
    GRAMMARS.close()


@pytest.fixture(scope="module", params=[1, 4, 9])
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    built = build(ANSWERS, grammars=GRAMMARS, tokens_per_step=request.param, context=4096)
    with running(Service(load_here(built))) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize(("key", "fields", "reasoning"), [("plain", OFF, None), ("thought", {}, "Hm.")])
def test_a17_b33_tool_choice(client: openai.OpenAI, key: str, fields: Any, reasoning: str | None) -> None:
    for choice in ("none", "auto", None):
        answer = ask(client, key, tools=TOOLS, tool_choice=choice, **fields)
        assert (answer["reasoning"], answer["content"], answer["calls"]) == (reasoning, "hi", [])
    for demand in ("required", named("assist")):
        answer = ask(client, key, tools=TOOLS, tool_choice=demand, **fields)
        assert (answer["reasoning"], answer["content"], answer["reason"]) == (reasoning, None, "tool_calls")
        assert answer["calls"] == [("assist", '{"query":"ships"}')]
    assert ask(client, key, tools=TOOLS, tool_choice=named("now"), **fields)["calls"] == [("now", "{}")]


def test_a17_of_anthropic(client: openai.OpenAI) -> None:
    sdk = anthropic.Anthropic(
        base_url=str(client.base_url).removesuffix("/v1/"), api_key="none", max_retries=0
    )
    declared: Any = [
        {"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS
    ]
    body: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "thought"}],
        "max_tokens": 200,
    }
    choices: Any = ({"type": "any"}, {"type": "tool", "name": "assist"})
    for choice in choices:
        message = sdk.messages.create(**body, tools=declared, tool_choice=choice, extra_body=GREEDY)
        with sdk.messages.stream(**body, tools=declared, tool_choice=choice, extra_body=GREEDY) as stream:
            final = stream.get_final_message()
        for found in (message, final):
            content: Any = found.content
            thought, call = content
            assert (
                thought.type == "thinking" and thought.thinking == "Hm." and found.stop_reason == "tool_use"
            )
            assert call.type == "tool_use" and (call.name, call.input) == ("assist", {"query": "ships"})
    form = {"format": {"type": "json_schema", "schema": BOAT}}
    content = sdk.messages.create(**body, extra_body={"output_config": form, **GREEDY}).content
    assert json.loads(content[1].text) == json.loads(JSON)


def test_a17_b33_on_anthropics_api(client: openai.OpenAI) -> None:
    sdk = anthropic.Anthropic(
        base_url=str(client.base_url).removesuffix("/v1/"), api_key="none", max_retries=0
    )
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    query, greedy = test_anthropic.used("assist", query="ships"), {"temperature": 0}
    for key, thinking, before in (
        ("plain", {"type": "disabled"}, []),
        ("thought", {"type": "enabled", "budget_tokens": 1024}, [test_anthropic.thought("Hm.")]),
    ):
        fields: Any = {"thinking": thinking, "max_tokens": 2000}
        for choice, call in (
            ({"type": "any"}, query),
            ({"type": "tool", "name": "assist"}, query),
            ({"type": "tool", "name": "now"}, test_anthropic.used("now")),
        ):
            answer = test_anthropic.ask(
                sdk, key, tools=tools, tool_choice=choice, extra_body=greedy, **fields
            )
            assert (answer["blocks"], answer["reason"]) == ([*before, call], "tool_use")
        output = {"format": {"type": "json_schema", "schema": BOAT}}
        answer = test_anthropic.ask(sdk, key, extra_body={**greedy, "output_config": output}, **fields)
        assert answer["blocks"] == [*before, test_anthropic.said(JSON)]
    one: Any = {"type": "any", "disable_parallel_tool_use": True}
    answer = test_anthropic.ask(
        sdk, "twice", tools=tools, tool_choice=one, extra_body=greedy, thinking={"type": "disabled"}
    )
    assert answer["blocks"] == [query]


def test_a17_b33_on_the_responses_api(client: openai.OpenAI) -> None:
    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    query, thought = ("call", "assist", '{"query":"ships"}'), ("thought", "Hm.")
    for key, effort, before in (("plain", "none", []), ("thought", "high", [thought])):
        fields: Any = {"reasoning": {"effort": effort}, "temperature": 0}
        for choice, call in (
            ("required", query),
            ({"type": "function", "name": "assist"}, query),
            ({"type": "function", "name": "now"}, ("call", "now", "{}")),
        ):
            answer = test_responses.ask(client, key, tools=tools, tool_choice=choice, **fields)
            assert (answer["items"], answer["status"]) == ([*before, call], "completed")
        text = {"format": {"type": "json_schema", "name": "boat", "schema": BOAT}}
        answer = test_responses.ask(client, key, text=text, **fields)
        assert answer["items"] == [*before, ("text", JSON)]


def test_an_unknown_tool(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'other' is not among tools") as error:
        ask(client, "plain", tools=TOOLS, tool_choice=named("other"))
    assert error.value.param == "tool_choice"


def test_a2_one_call(client: openai.OpenAI) -> None:
    """Case A2, the calls demanded; what is behind the first is not even computed."""
    both = ask(client, "twice", tools=TOOLS, tool_choice="required", **OFF)
    assert [name for name, _ in both["calls"]] == ["assist", "now"]
    one = ask(client, "twice", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, **OFF)
    assert (one["calls"], one["reason"]) == (both["calls"][:1], "tool_calls")
    assert one["tokens"] == len(TOKENIZER.encode(ASSIST))


def test_arguments_keep_to_their_schema(client: openai.OpenAI) -> None:
    """Where a call is demanded, and for strict tools where one is made."""
    strict = {"type": "function", "function": {**SUM["function"], "strict": True}}
    for fields in (
        {"tools": [SUM], "tool_choice": "required"},
        {"tools": [strict], "tool_choice": named("sum")},
    ):
        ((name, arguments),) = ask(client, "wrong", **fields, **OFF)["calls"]
        assert name == "sum" and json.loads(arguments)["n"] in (3, 7)
    assert ask(client, "plain", tools=[strict], **OFF)["content"] == "hi"


@pytest.mark.parametrize(("key", "fields", "reasoning"), [("plain", OFF, None), ("thought", {}, "Hm.")])
def test_text_of_a_form(client: openai.OpenAI, key: str, fields: Any, reasoning: str | None) -> None:
    extra = fields.get("extra_body", {})
    forms: list[tuple[dict[str, Any], str]] = [
        ({"response_format": schema(BOAT)}, JSON),
        ({"response_format": {"type": "json_object"}}, JSON),
        ({"response_format": {"type": "text"}}, "hi"),
        ({"extra_body": {**extra, "regex": r"\d{4}-\d{2}-\d{2}"}}, "2026-12-01"),
        ({"extra_body": {**extra, "grammar": 'root ::= "hi" | "ho"'}}, "hi"),
        ({"extra_body": {**extra, "grammar": 'root ::= d "-" d "-" d\nd ::= [0-9]+'}}, "2026-12-01"),
        ({"response_format": schema(BOAT), "tools": TOOLS, "tool_choice": "none"}, JSON),
    ]
    for form, content in forms:
        answer = ask(client, key, **{**fields, **form})
        assert (answer["reasoning"], answer["content"], answer["reason"]) == (reasoning, content, "stop")
    cut = ask(client, key, **fields, response_format=schema(BOAT), max_tokens=12)
    assert cut["reason"] == "length" and JSON.startswith(cut["content"])


def complete(client: openai.OpenAI, **fields: Any) -> dict[str, Any]:
    """A completion, asked for whole and streamed: both are the same."""
    url = f"{client.base_url}completions"
    body = {"prompt": "plain", "temperature": 0, "max_tokens": 100, **fields}
    whole = httpx.post(url, json=body, timeout=20)
    text = httpx.post(url, json={**body, "stream": True}, timeout=20).text
    events = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n") if e.startswith("data: {")]
    if whole.status_code != 200:
        assert {**events[-1]["error"]} == whole.json()["error"]
        return {"status": whole.status_code, **whole.json()["error"]}
    (choice,) = whole.json()["choices"]
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    assert pieces[-1]["finish_reason"] == choice["finish_reason"]
    return {"text": choice["text"], "reason": choice["finish_reason"]}


def test_completions_of_a_form(client: openai.OpenAI) -> None:
    for form, text in (
        ({"response_format": schema(BOAT)}, JSON),
        ({"response_format": {"type": "json_object"}}, JSON),
        ({"response_format": {"type": "text"}}, "hi"),
        ({"regex": r"\d{4}-\d{2}-\d{2}"}, "2026-12-01"),
        ({"grammar": 'root ::= d "-" d "-" d\nd ::= [0-9]+'}, "2026-12-01"),
        ({"grammar": 'root ::= "hi"', "echo": True}, "plainhi"),
    ):
        assert complete(client, **form) == {"text": text, "reason": "stop"}
    assert complete(client, regex="[a-z]{9}", max_tokens=1)["reason"] == "length"


DEAD = 'root ::= "hi" x\nx ::= y "c"\ny ::= "d" z\nz ::= z'  # z has no end


@pytest.mark.parametrize("client", [4], indirect=True)
def test_a_grammar_that_leads_nowhere(client: openai.OpenAI) -> None:
    """It is the request's fault; what it held is free, and the next one is answered."""
    why = "grammar: the grammar allows no next token"
    found = complete(client, grammar=DEAD)
    assert (found["status"], found["type"], found["param"]) == (400, "invalid_request_error", "grammar")
    assert found["message"].startswith(why)
    with pytest.raises(openai.BadRequestError, match=why) as error:
        ask(client, "plain", extra_body={"grammar": DEAD, "enable_thinking": False})
    assert error.value.param == "grammar"
    with pytest.raises(openai.APIError, match=why):
        list(
            client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "plain"}], stream=True,
                extra_body={"grammar": DEAD, "enable_thinking": False},
            )
        )  # fmt: skip
    cut = complete(client, grammar=DEAD, max_tokens=1)
    assert cut["reason"] == "length"
    metrics = httpx.get(str(client.base_url).replace("/v1/", "/metrics")).text
    assert "num_requests_running 0" in metrics and 'errors_total{code="500"}' not in metrics
    assert complete(client)["text"] == "hi"


@pytest.mark.parametrize("client", [4], indirect=True)
def test_a_grammar_that_gets_slower(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "PATIENCE", 0.0)
    monkeypatch.setattr(grammar, "PER_TOKEN", 0.0)
    found = complete(client, regex="(a|b|h|i)*")
    assert (found["status"], found["param"]) == (400, "regex") and "too long" in found["message"]


def test_a_form_and_tools(client: openai.OpenAI) -> None:
    """The answer is either; a call that is demanded goes before."""
    fields: Any = {"response_format": schema(BOAT), "tools": TOOLS, **OFF}
    answer = ask(client, "plain", **fields)
    assert answer["calls"] == [("assist", '{"query":"ships"}')] or answer["content"] == JSON
    assert ask(client, "plain", **fields, tool_choice=named("now"))["calls"] == [("now", "{}")]


@pytest.mark.parametrize("client", [4], indirect=True)
def test_several_choices(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "plain"}], n=3, seed=1, temperature=1,
        response_format=schema(BOAT), **OFF,
    )  # type: ignore[call-overload]  # fmt: skip
    assert [json.loads(c.message.content) for c in whole.choices] == 3 * [json.loads(JSON)]


JSON_BODY = {"content-type": "application/json"}
HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"response_format": schema({"type": "objekt"})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"type": "string", "pattern": "("})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"$ref": "#/$defs/x"})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"$ref": "#"})}, "response_format.json_schema.schema"),
    ({"response_format": schema(False)}, "response_format.json_schema.schema"),
    ({"response_format": schema([1])}, "response_format.json_schema.schema"),
    ({"response_format": schema({"properties": [1]})}, "response_format.json_schema.schema"),
    ({"response_format": schema({"const": "\ud800"})}, "response_format.json_schema.schema"),
    ({"regex": "(a"}, "regex"),
    ({"regex": "(?=a)b"}, "regex"),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"grammar": "root ::= root"}, "grammar"),
    ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "grammar"),
    ({"tools": [*TOOLS, tool("x", {"type": "objekt"})], "tool_choice": "required"}, "tools[2].function.parameters"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
]  # fmt: skip
BOMB = "root ::= " + " ".join(f"a{i}" for i in range(3000)) + "".join(
    f"\na{i} ::= ([a-z]{{0,500}} a{i * 7 % 3000})* | [\\u0000-\\uffff]{{3,900}}" for i in range(3000)
)  # fmt: skip


@pytest.mark.parametrize("client", [4], indirect=True)
def test_a19_hostile_forms(client: openai.OpenAI) -> None:
    """Case A19: refused with the field, the process lives, and an answer that is streamed meanwhile is whole."""
    url, body = f"{client.base_url}chat/completions", {"messages": [{"role": "user", "content": "plain"}]}
    done, whole = threading.Event(), []

    def neighbour() -> None:
        while not done.is_set():
            whole.append(ask(client, "plain", **OFF)["content"])

    thread = threading.Thread(target=neighbour)
    thread.start()
    try:
        for fields, param in HOSTILE:
            content = json.dumps({**body, **fields})  # which spells half a character, too
            answer = httpx.post(url, content=content, headers=JSON_BODY, timeout=20)
            assert answer.status_code == 400, (fields, answer.text)
            assert answer.json()["error"]["param"] == param and param in answer.json()["error"]["message"]
            if "tools" not in fields:
                content = json.dumps({"prompt": "plain", **fields})
                again = httpx.post(
                    f"{client.base_url}completions", content=content, headers=JSON_BODY, timeout=20
                )
                wanted = answer.json()["error"]
                if param == "max_tokens":  # a prompt alone can be computed there
                    wanted["message"] = wanted["message"].replace("equal to 1", "equal to 0")
                assert (again.status_code, again.json()["error"]) == (400, wanted)
        deep = json.dumps({**body, "response_format": schema("x")}).replace(
            '"x"', '{"properties":{"a":' * 5000 + "1" + "}}" * 5000
        )
        for content in (deep, "{", "[" * 100000):
            answer = httpx.post(url, content=content, headers=JSON_BODY, timeout=20)
            assert answer.status_code == 400
        answer = httpx.post(url, json={**body, "grammar": BOMB}, timeout=20)
        assert answer.status_code == 400 and "too complicated" in answer.json()["error"]["message"]
        assert httpx.get(str(client.base_url).replace("/v1/", "/health")).status_code == 200
    finally:
        done.set()
        thread.join()
    assert len(whole) > 3 and set(whole) == {"hi"}
    assert ask(client, "plain", response_format=schema(BOAT), **OFF)["content"] == JSON


def test_a17_of_responses(client: openai.OpenAI) -> None:
    declared: Any = [{"type": "function", **t["function"]} for t in TOOLS]
    choices: Any = ("required", {"type": "function", "name": "assist"})
    for choice in choices:
        answer = client.responses.create(
            model="scripted", input="thought", temperature=0, tools=declared, tool_choice=choice
        )
        call: Any = answer.output[-1]
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call",
            "assist",
            {"query": "ships"},
        )
    form: Any = {"format": {"type": "json_schema", "name": "boat", "schema": BOAT, "strict": True}}
    answer = client.responses.create(model="scripted", input="thought", temperature=0, text=form)
    assert json.loads(answer.output_text) == json.loads(JSON)

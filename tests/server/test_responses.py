"""OpenAI's Responses API, asked by the official client: cases A1 to A5, A17, A19, A20; whole and streamed.

The answers are those of `test_conversation`, of the real engine, scripted, with 1, 4 and 9 tokens a step.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.scripted import ScriptedEngine, live, says
from tests.server.test_conversation import NOW, TOOLS, WRITE
from tests.server.test_refusals import refusal
from tests.support.scripted_server import bundled

DECLARED: Any = [{"type": "function", **t["function"]} for t in TOOLS]


@pytest.fixture
def sdk(conversing: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{conversing}/v1", api_key="none", max_retries=0, timeout=60)


def plain(response: Any) -> dict[str, Any]:
    """What two answers to one request have in common: all but what identifies them."""
    items: list[tuple[str, ...]] = []
    for item in response.output:
        assert item.status == ("completed" if response.status == "completed" else item.status)
        match item.type:
            case "reasoning":
                assert item.id.startswith("rs_") and item.summary == []
                items.append(("thought", "".join(part.text for part in item.content)))
            case "message":
                assert item.id.startswith("msg_") and item.role == "assistant"
                items.append(("text", "".join(part.text for part in item.content)))
            case "function_call":
                assert item.id.startswith("fc_") and item.call_id.startswith("call_")
                items.append(("call", item.name, item.arguments))
    assert len({item.id for item in response.output}) == len(items)
    usage = response.usage
    return {
        "items": items,
        "status": response.status,
        "details": response.incomplete_details and response.incomplete_details.reason,
        "tokens": (usage.input_tokens, usage.output_tokens, usage.output_tokens_details.reasoning_tokens),
    }


def ask(sdk: openai.OpenAI, given: Any, **fields: Any) -> dict[str, Any]:
    """The answer, asked for whole and streamed: both are the same."""
    fields = {"model": "scripted", "input": given, **fields}
    whole = sdk.responses.create(**fields)
    assert whole.id.startswith("resp_") and whole.model == "scripted" and whole.store is False
    answer = plain(whole)
    events = list(sdk.responses.create(**fields, stream=True))
    orderly(events)
    assert plain(events[-1].response) == answer
    with sdk.responses.stream(**fields) as stream:
        stream.until_done()
    return answer


def orderly(events: list[Any]) -> None:
    """Numbered from 0; items one after the other, each with its deltas and what they come to between added and done."""
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    added, text = None, ""
    count = 0
    for e in events[2:-1]:
        if e.type == "response.output_item.added":
            assert added is None and e.output_index == count
            added, text, count = e.item.id, "", count + 1
        elif e.type == "response.output_item.done":
            assert e.item.id == added and e.item.status != "in_progress"
            added = None
        else:
            assert e.item_id == added and e.output_index == count - 1
        if e.type.endswith(".delta"):
            text += e.delta
        elif e.type.endswith(("text.done", "arguments.done")):
            assert text == (e.arguments if "arguments" in e.type else e.text)
    assert added is None and count == len(events[-1].response.output)


def test_calls(sdk: openai.OpenAI) -> None:
    """Cases A1 and A2."""
    answer = ask(sdk, "both", tools=DECLARED)
    thought, write, now = answer["items"]
    assert thought == ("thought", "I do.") and now == ("call", "now", "{}")
    assert write[1] == "write_file" and json.loads(write[2]) == {"path": 'a}b"c\\d.txt', "n": 3}
    assert answer["status"] == "completed"
    assert ask(sdk, "both", tools=DECLARED, parallel_tool_calls=False)["items"] == [thought, write]
    assert ask(sdk, "words", tools=DECLARED)["items"] == [thought, ("text", "Here: "), now]


def test_no_calls(sdk: openai.OpenAI) -> None:
    """Cases A5 and A17: marks in a text, no tools, tool_choice none; a call that was cut off."""
    marks = [("thought", "The marker <tool_call> opens a call."), ("text", "Use <tool_call> with care.")]
    none: Any = {"tools": DECLARED, "tool_choice": "none"}
    for fields in ({}, {"tools": DECLARED}, none):
        assert ask(sdk, "marks", **fields)["items"] == marks
    assert ask(sdk, "both", **none)["items"][1:] == [("text", f"{WRITE}\n{NOW}")]
    inside = bundled()[1].encode(f"I do.\n</think>\n\n{WRITE[: WRITE.index('a}')]}a}}b")
    cut = sdk.responses.create(model="scripted", input="both", tools=DECLARED, max_output_tokens=len(inside))
    assert cut.status == "incomplete" and cut.output[-1].status == "incomplete"  # type: ignore[union-attr]
    assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"


def test_thinking(sdk: openai.OpenAI) -> None:
    """Case A3."""
    answer = ask(sdk, "plain", reasoning={"effort": "none"})
    assert answer["items"] == [("text", "hi")] and answer["tokens"][2] == 0
    for effort in ("minimal", "high"):
        answer = ask(sdk, "plain", reasoning={"effort": effort, "summary": "auto"})
        assert answer["items"] == [("thought", "hi")] and answer["tokens"][2] == answer["tokens"][1] > 0


def test_an_agent_goes_on(sdk: openai.OpenAI) -> None:
    """The answer's items are passed back as they came, with the call's result."""
    first = sdk.responses.create(model="scripted", input="words", tools=DECLARED)
    call: Any = first.output[-1]
    for output in ("result", [{"type": "input_text", "text": "result"}]):
        given = [
            {"role": "user", "content": "words"},
            *(item.model_dump(exclude_none=True) for item in first.output),
            {"type": "function_call_output", "call_id": call.call_id, "output": output},
        ]
        answer = ask(sdk, given, tools=DECLARED, instructions="Be brief.")
        assert answer["items"] == [("thought", "Look."), ("text", "It is noon.")]


def test_the_prompt_is_that_of_chat(sdk: openai.OpenAI) -> None:
    """The same conversation in both shapes has as many tokens, and what it says is in them."""
    given: Any = [
        {"type": "message", "role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "now?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "So:"}]},
        {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "noon"},
        {"role": "user", "content": "thanks"},
    ]
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Brief.\n\nBe kind."},
        {"role": "user", "content": "now?"},
        {"role": "assistant", "content": "So:", "reasoning_content": "Look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
        {"role": "user", "content": "thanks"},
    ]
    told = httpx.post(
        f"{str(sdk.base_url).removesuffix('/v1/')}/tokenize", json={"messages": messages, "tools": TOOLS}
    )
    answer = sdk.responses.create(
        model="scripted", input=given, tools=DECLARED, instructions="Brief.", max_output_tokens=1
    )
    assert answer.usage is not None and answer.usage.input_tokens == told.json()["count"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": DECLARED, "tool_choice": {"type": "function", "name": "later"}}, "tool_choice"),
    ],
)
def test_refusals(client: httpx.Client, fields: Any, param: str) -> None:
    """Cases A19 and A20."""
    error = refusal(client.post("/v1/responses", json={"input": "plain", **fields}), 400)
    assert error["param"] == param


def test_an_error_in_a_stream() -> None:
    with live(ScriptedEngine(says("hello"), die_at=2)) as url:
        sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        last: Any = list(sdk.responses.create(model="nano", input="hi", stream=True))[-1]
        assert last.type == "error" and "planted" in last.message and last.code == "engine_error"

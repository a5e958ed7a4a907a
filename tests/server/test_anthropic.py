"""Anthropic's API, asked by the official client: cases A1 to A5, A17, A18, A20; whole and streamed.

The answers are those of `test_conversation`, of the real engine, scripted, with 1, 4 and 9 tokens a step.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest

from nextfit.server.config import HttpConfig
from tests.server.scripted import ScriptedEngine, live, says
from tests.server.test_conversation import FOREVER, NOW, TOOLS, WRITE
from tests.support.scripted_server import bundled

DECLARED: Any = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]


@pytest.fixture
def sdk(conversing: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=conversing, api_key="none", max_retries=0, timeout=60)


def plain(message: Any) -> dict[str, Any]:
    """What two answers to one request have in common: all but what identifies them, and cached tokens."""
    found: dict[str, Any] = message.model_dump()
    ids = [block.pop("id") for block in found["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids) and all(id.startswith("toolu_") for id in ids)
    usage = found["usage"]
    return {
        "blocks": [
            {
                k: v
                for k, v in block.items()
                if k in ("type", "text", "thinking", "signature", "name", "input")
            }
            for block in found["content"]
        ],
        "reason": found["stop_reason"],
        "stop": found["stop_sequence"],
        "prompt": usage["input_tokens"] + usage["cache_read_input_tokens"],
        "tokens": usage["output_tokens"],
    }


def ask(sdk: anthropic.Anthropic, text: str, **fields: Any) -> dict[str, Any]:
    """The answer, asked for whole and streamed: both are the same, and the prompt is as long as it was said to be."""
    fields = {
        "model": "scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 500, **fields,
    }  # fmt: skip
    whole = sdk.messages.create(**fields)
    assert whole.id.startswith("msg_") and whole.role == "assistant" and whole.model == "scripted"
    answer = plain(whole)
    with sdk.messages.stream(**fields) as stream:
        orderly(list(stream._raw_stream))
    with sdk.messages.stream(**fields) as stream:
        assert plain(stream.get_final_message()) == answer
    prompt = {k: fields[k] for k in ("model", "messages", "system", "tools", "thinking") if k in fields}
    if "tool_choice" not in fields:
        assert sdk.messages.count_tokens(**prompt).input_tokens == answer["prompt"]
    return answer


def orderly(events: list[Any]) -> None:
    """Message, blocks one after the other, message; each delta between its block's start and stop."""
    kinds = [e.type for e in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0].message.content == [] and events[0].message.stop_reason is None
    open_block, count = None, 0
    for e in events[1:-2]:
        match e.type:
            case "content_block_start":
                assert open_block is None and e.index == count
                open_block, count = e.index, count + 1
            case "content_block_delta":
                assert e.index == open_block
            case "content_block_stop":
                assert e.index == open_block
                open_block = None
            case _:
                raise AssertionError(e)
    assert open_block is None


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "unsigned"}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def used(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "input": arguments}


def test_calls(sdk: anthropic.Anthropic) -> None:
    """Cases A1 and A2."""
    write = used("write_file", path='a}b"c\\d.txt', n=3)
    answer = ask(sdk, "both", tools=DECLARED)
    assert answer["blocks"] == [thought("I do."), write, used("now")]
    assert (answer["reason"], answer["stop"]) == ("tool_use", None)
    one = ask(sdk, "both", tools=DECLARED, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert (one["blocks"], one["reason"]) == ([thought("I do."), write], "tool_use")
    assert ask(sdk, "words", tools=DECLARED)["blocks"] == [thought("I do."), said("Here: "), used("now")]
    assert ask(sdk, "inside", tools=DECLARED)["blocks"][1:] == [used("now")]


def test_no_calls(sdk: anthropic.Anthropic) -> None:
    """Cases A5 and A17: marks in a text, no tools, tool_choice none; a call that was cut off is none."""
    none: Any = {"tools": DECLARED, "tool_choice": {"type": "none"}}
    for fields in ({}, {"tools": DECLARED}, none):
        answer = ask(sdk, "marks", **fields)
        assert answer["blocks"] == [
            thought("The marker <tool_call> opens a call."), said("Use <tool_call> with care."),
        ]  # fmt: skip
        assert answer["reason"] == "end_turn"
    assert ask(sdk, "both", **none)["blocks"][1:] == [said(f"{WRITE}\n{NOW}")]
    inside = bundled()[1].encode(f"I do.\n</think>\n\n{WRITE[: WRITE.index('a}')]}a}}b")
    whole = sdk.messages.create(
        model="scripted",
        messages=[{"role": "user", "content": "both"}],
        tools=DECLARED,
        max_tokens=len(inside),
    )
    assert whole.stop_reason == "max_tokens"
    assert [block.type for block in whole.content] == ["thinking"]


def test_thinking(sdk: anthropic.Anthropic) -> None:
    """Case A3: off, on, on with a budget, and as much as the model likes."""
    assert ask(sdk, "plain", thinking={"type": "disabled"})["blocks"] == [said("hi")]
    for fields in (
        {},
        {"thinking": {"type": "adaptive"}},
        {"extra_body": {"output_config": {"effort": "max"}}},
    ):
        assert ask(sdk, "plain", **fields)["blocks"] == [thought("hi")]
    _, tokenizer, _ = bundled()
    bounded = ask(sdk, "forever", thinking={"type": "enabled", "budget_tokens": 16})
    assert bounded["blocks"] == [thought(tokenizer.decode(FOREVER[:16]).strip()), said("Enough.")]


def test_stop_sequences(sdk: anthropic.Anthropic) -> None:
    """Case A4."""
    answer = ask(sdk, "stop", stop_sequences=["Question:"])
    assert answer["blocks"] == [thought("Question: x"), said("Answer: 4 ")]
    assert (answer["reason"], answer["stop"]) == ("stop_sequence", "Question:")


def test_an_agent_goes_on(sdk: anthropic.Anthropic) -> None:
    """A call as it came, its result in blocks or as text, also of a tool that failed; then an answer."""
    first = sdk.messages.create(
        model="scripted", messages=[{"role": "user", "content": "words"}], tools=DECLARED, max_tokens=500
    )
    [call] = [block for block in first.content if block.type == "tool_use"]
    for content in ("result", [{"type": "text", "text": "result"}]):
        result = {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": True}
        messages = [
            {
                "role": "user",
                "content": [{"type": "text", "text": "words", "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        system = [{"type": "text", "text": "Be brief."}]
        answer = ask(sdk, "", messages=messages, tools=DECLARED, system=system)
        assert answer["blocks"] == [thought("Look."), said("It is noon.")]


def test_the_prompt_is_that_of_openai(sdk: anthropic.Anthropic) -> None:
    """The same conversation in both shapes has the same token ids, told by /tokenize and the count of them."""
    ours: Any = {
        "system": "Be kind.",
        "messages": [
            {"role": "user", "content": "now?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "So:"}, {"type": "tool_use", "id": "a", "name": "now", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "noon"}, {"type": "text", "text": "thanks"},
            ]},
        ],
        "tools": DECLARED,
    }  # fmt: skip
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    theirs = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "now?"},
            {"role": "assistant", "content": "So:", "reasoning_content": "Look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "noon"},
            {"role": "user", "content": "thanks"},
        ],
        "tools": TOOLS,
    }
    told = httpx.post(f"{sdk.base_url}/tokenize", json=theirs).json()
    assert sdk.messages.count_tokens(model="scripted", **ours).input_tokens == told["count"]
    text = httpx.post(f"{sdk.base_url}/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
    for part in ("Be kind.", "now?", "Look.", "So:", "noon", "thanks", "<tool_call>", "write_file"):
        assert part in text


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5, "tool_use_id": "a"}]}]},
         "messages[0].content[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "input"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        ({"tools": DECLARED, "tool_choice": {"type": "tool", "name": "later"}}, "'later'"),
        ({"tools": DECLARED, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)  # fmt: skip
def test_refusals(client: httpx.Client, fields: Any, told: str) -> None:
    """Cases A19 and A20, in Anthropic's shape and with the field named."""
    body = {"messages": [{"role": "user", "content": "plain"}], "max_tokens": 5, **fields}
    answer = client.post("/v1/messages", json={k: v for k, v in body.items() if v is not None})
    assert answer.status_code == 400, answer.text
    found = answer.json()
    assert found["type"] == "error" and found["request_id"]
    assert found["error"]["type"] == "invalid_request_error"
    assert told in found["error"]["message"]


def test_other_refusals(sdk: anthropic.Anthropic) -> None:
    url = f"{sdk.base_url}/v1/messages"
    with pytest.raises(anthropic.NotFoundError, match="'claude'"):
        sdk.messages.create(model="claude", messages=[{"role": "user", "content": "x"}], max_tokens=5)
    with pytest.raises(anthropic.BadRequestError, match="4096"):
        sdk.messages.create(
            model="scripted", messages=[{"role": "user", "content": "x"}], max_tokens=5000, timeout=60
        )
    assert httpx.get(url).json()["type"] == "error"
    assert httpx.post(url, content=b"{").json()["error"]["type"] == "invalid_request_error"
    beta = {"anthropic-beta": "x-2025", "anthropic-version": "2023-06-01"}
    body = {"messages": [{"role": "user", "content": "plain"}], "max_tokens": 5, "metadata": {"user_id": "u"}}
    assert httpx.post(url, json=body, headers=beta).status_code == 200
    turns = [{"role": "user", "content": "plain"}, {"role": "assistant", "content": "So"}]
    assert httpx.post(url, json=body | {"messages": turns}).status_code == 200


def test_keys_and_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A18; and `ping` events where nothing else comes."""
    monkeypatch.setattr("nextfit.server.stream.KEEPALIVE_SECONDS", 0.02)
    body: Any = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    engine = ScriptedEngine(says("ok"), silent=20, pause=0.01)
    with live(engine, HttpConfig(keys=("right",))) as url:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(**body)
        assert json.loads(refused.value.response.text)["error"]["type"] == "authentication_error"
        for header in ({"api_key": "right"}, {"auth_token": "right"}):
            client = anthropic.Anthropic(base_url=url, max_retries=0, **header)  # type: ignore[arg-type]
            assert client.messages.create(**body).stop_reason == "end_turn"
        headers, engine.steps = {"x-api-key": "right"}, 0
        text = httpx.post(f"{url}/v1/messages", json=body | {"stream": True}, headers=headers).text
        assert text.count('event: ping\ndata: {"type":"ping"}\n\n') > 1
        assert "[DONE]" not in text

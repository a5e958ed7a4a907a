"""Thinking and tools over HTTP, asked by the official client: cases A1 to A5, A17, A20; whole and streamed.

The real engine, scripted, with drafts: 1, 4 and 9 tokens a step, tokenizer and template of the bundled model.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.test_refusals import tool
from tests.support.scripted_server import bundled

WRITE = (
    '<tool_call>\n<function=write_file>\n<parameter=path>\na}b"c\\d.txt\n</parameter>\n<parameter=n>\n3\n'
    "</parameter>\n</function>\n</tool_call>"
)
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
FOREVER = bundled()[1].encode("round and ") * 40
ANSWERS: Any = {
    "forever": [FOREVER, [*FOREVER[:16], *bundled()[1].encode("</think>\n\nEnough.")]],
    "both": f"I do.\n</think>\n\n{WRITE}\n{NOW}",
    "words": f"I do.</think>\n\nHere: {NOW}",
    "plain": "hi",
    "stop": "Question: x</think>Answer: 4 Question: y",
    "marks": "The marker <tool_call> opens a call.</think>Use <tool_call> with care.",
    "inside": f"I do.\n{NOW}",
    "unsure": "Hm. ",
    "result": "Look.</think>\n\nIt is noon.",
}
TOOLS: Any = [
    tool(
        "write_file",
        {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}},
    ),
    tool("now", {"type": "object", "properties": {}}),
]


@pytest.fixture
def client(conversing: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{conversing}/v1", api_key="none", max_retries=0, timeout=60)


def ask(client: openai.OpenAI, text: str, **fields: Any) -> dict[str, Any]:
    """The answer, asked for whole and streamed: both are the same."""
    messages: Any = fields.pop("messages", None) or [{"role": "user", "content": text}]
    fields = {"model": "scripted", "messages": messages, "temperature": 0, **fields}
    whole = client.chat.completions.create(**fields)
    choice = whole.choices[0]
    message = choice.message.model_dump()
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"] or ()]
    ids = [c["id"] for c in message["tool_calls"] or ()]
    assert len(set(ids)) == len(ids)
    assert whole.usage is not None
    details = whole.usage.completion_tokens_details
    assert details is not None
    answer = {
        "reasoning": message["reasoning_content"],
        "content": message["content"],
        "calls": calls,
        "reason": choice.finish_reason,
        "reasoning_tokens": details.reasoning_tokens,
        "tokens": whole.usage.completion_tokens,
    }
    assert streamed(client, fields) == answer
    return answer


def streamed(client: openai.OpenAI, fields: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "reason": None}
    calls: list[list[str]] = []
    for chunk in client.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    ):
        if chunk.usage is not None:
            details = chunk.usage.completion_tokens_details
            answer |= {"reasoning_tokens": details.reasoning_tokens, "tokens": chunk.usage.completion_tokens}
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_unset=True)
            answer["reasoning"] += delta.get("reasoning_content") or ""
            answer["content"] += delta.get("content") or ""
            answer["reason"] = choice.finish_reason or answer["reason"]
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    assert call["index"] == len(calls) and call["type"] == "function"
                    calls.append([call["function"]["name"], ""])
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                calls[call["index"]][1] += call["function"]["arguments"]
    answer["calls"] = [tuple(call) for call in calls]
    answer["reasoning"] = answer["reasoning"] or None
    answer["content"] = answer["content"] or (None if calls else "")
    return answer


def test_a1_a2_calls(client: openai.OpenAI) -> None:
    """Cases A1 and A2."""
    answer = ask(client, "both", tools=TOOLS)
    assert (answer["reasoning"], answer["content"], answer["reason"]) == ("I do.", None, "tool_calls")
    (write, arguments), now = answer["calls"]
    assert write == "write_file" and now == ("now", "{}")
    assert json.loads(arguments) == {"path": 'a}b"c\\d.txt', "n": 3}
    one = ask(client, "both", tools=TOOLS, parallel_tool_calls=False)
    assert (one["calls"], one["reason"]) == (answer["calls"][:1], "tool_calls")
    assert one["tokens"] < answer["tokens"]
    words = ask(client, "words", tools=TOOLS)
    assert (words["content"], words["calls"]) == ("Here: ", [("now", "{}")])
    assert ask(client, "inside", tools=TOOLS)["calls"] == [("now", "{}")]


def test_no_calls(client: openai.OpenAI) -> None:
    """Cases A5 and A17: marks in a text, no tools, and tool_choice none."""
    for fields in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = ask(client, "marks", **fields)
        assert answer["reasoning"] == "The marker <tool_call> opens a call."
        assert (answer["content"], answer["reason"]) == ("Use <tool_call> with care.", "stop")
        assert not answer["calls"]
    none = ask(client, "both", tools=TOOLS, tool_choice="none")
    assert (none["content"], none["calls"]) == (f"{WRITE}\n{NOW}", [])
    cut = ask(client, "both", tools=TOOLS, max_tokens=20)
    assert cut["reason"] == "length"


def test_thinking(client: openai.OpenAI) -> None:
    """Case A3."""
    off: list[dict[str, Any]] = [
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"extra_body": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
    ]
    for fields in off:
        answer = ask(client, "plain", **fields)
        assert (answer["reasoning"], answer["content"], answer["reasoning_tokens"]) == (None, "hi", 0)
    for effort in ("minimal", "low", "medium", "high", "xhigh"):
        answer = ask(client, "plain", reasoning_effort=effort)
        assert (answer["reasoning"], answer["content"]) == ("hi", "")
        assert answer["reasoning_tokens"] == answer["tokens"] > 0


def test_a3_thinking_budget(client: openai.OpenAI) -> None:
    """Case A3(c): the close token comes after so many tokens, also inside a verified block."""
    _, tokenizer, _ = bundled()
    for stop in ({}, {"stop": ["round"]}):
        answer = ask(client, "forever", extra_body={"thinking_budget": 16}, **stop)
        assert answer["reasoning"] == tokenizer.decode(FOREVER[:16]).strip()
        assert (answer["content"], answer["reason"], answer["reasoning_tokens"]) == ("Enough.", "stop", 17)
    for enough in (len(FOREVER) + 1, 10**6):
        answer = ask(client, "forever", extra_body={"thinking_budget": enough})
        assert answer["reasoning_tokens"] == len(FOREVER)
    words = ask(client, "words", extra_body={"thinking_budget": 16})
    assert words == ask(client, "words")
    off = ask(client, "plain", reasoning_effort="none", extra_body={"thinking_budget": 0})
    assert (off["reasoning"], off["content"]) == (None, "hi")


def test_stop_strings_in_thought_and_answer(client: openai.OpenAI) -> None:
    """Case A4."""
    answer = ask(client, "stop", stop=["Question:"])
    assert (answer["reasoning"], answer["content"], answer["reason"]) == ("Question: x", "Answer: 4 ", "stop")
    _, tokenizer, _ = bundled()
    assert answer["reasoning_tokens"] == len(tokenizer.encode("Question: x</think>"))


def test_an_agent_goes_on(client: openai.OpenAI) -> None:
    """A call, its result, an answer; what the model thought is passed back under either name."""
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    for name in ("reasoning_content", "reasoning"):
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "both"}]},
            {"role": "assistant", "content": None, name: "I do.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "result"}]},
            {"role": "system", "content": "And kind."},
        ]
        answer = ask(client, "", messages=messages, tools=TOOLS)
        assert (answer["reasoning"], answer["content"], answer["calls"]) == ("Look.", "It is noon.", [])


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([], 400),
        ([{"role": "user", "content": ""}], 200),
        ([{"role": "system", "content": "x"}], 400),
        ([{"role": "user", "content": "plain"}, {"role": "assistant", "content": "So"}], 200),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]}], 400),
    ],
)
def test_rules(client: openai.OpenAI, messages: Any, status: int) -> None:
    """Case A20."""
    answer = httpx.post(f"{client.base_url}chat/completions", json={"messages": messages, "max_tokens": 4})
    assert answer.status_code == status


def test_logprobs_of_every_token(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "scripted", "messages": [{"role": "user", "content": "both"}], "tools": TOOLS,
        "logprobs": True, "top_logprobs": 2, "temperature": 0,
    }  # fmt: skip
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    told = [t.token for t in whole.logprobs.content]
    assert "".join(told) == ANSWERS["both"]
    parts = [c.choices[0].logprobs for c in client.chat.completions.create(**fields, stream=True)]
    assert [t.token for p in parts if p for t in p.content or ()] == told

"""Answers of every API, whole or streamed, as one kind of value: what two answers to one request have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.pairwise import Value

CLOSE = 1e-9  # between two log-probabilities of one token, in float64


@dataclass
class Choice:
    thought: str = ""
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name, arguments
    reason: str | None = None
    probabilities: list[tuple[str, float, tuple[tuple[str, float], ...]]] = field(default_factory=list)

    def alike(self, other: Choice) -> bool:
        mine, theirs = self.probabilities, other.probabilities
        return (
            (self.thought, self.text, self.calls, self.reason)
            == (other.thought, other.text, other.calls, other.reason)
            and len(mine) == len(theirs)
            and all(_close(a, b) for a, b in zip(mine, theirs, strict=True))
        )

    def begins(self, other: Choice) -> bool:
        """Whether `other` says the same and perhaps more."""
        mine, theirs = "".join(map("".join, self.calls)), "".join(map("".join, other.calls))
        return (
            other.thought.startswith(self.thought)
            and other.text.startswith(self.text)
            and theirs.startswith(mine)
        )


def _close(a: tuple[str, float, Any], b: tuple[str, float, Any]) -> bool:
    mine, theirs = [a[:2], *a[2]], [b[:2], *b[2]]
    return [t for t, _ in mine] == [t for t, _ in theirs] and all(
        abs(x - y) < CLOSE for (_, x), (_, y) in zip(mine, theirs, strict=True)
    )


@dataclass
class Answer:
    choices: list[Choice]
    prompt: int | None = None  # tokens
    cached: int | None = None
    tokens: int | None = None
    reasoning: int | None = None  # tokens of it; None: not told

    def alike(self, other: Answer) -> bool:
        """The same but for cached tokens."""
        counts = (self.prompt, self.tokens, self.reasoning), (other.prompt, other.tokens, other.reasoning)
        return (
            counts[0] == counts[1]
            and len(self.choices) == len(other.choices)
            and all(a.alike(b) for a, b in zip(self.choices, other.choices, strict=True))
        )


def events(body: str) -> list[dict[str, Any]]:
    """Of a stream, or of its beginning."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines if line.endswith("}")]


def read(api: Value, body: str, streamed: bool) -> Answer:
    """The answer that a response's body is; of a stream that was left, as far as it had come."""
    match api:
        case "messages":
            return _messages_events(events(body)) if streamed else _message(json.loads(body))
        case "responses":
            return _responses_events(events(body)) if streamed else _response(json.loads(body))
    return _openai(events(body) if streamed else [json.loads(body)])


def _openai(chunks: Sequence[dict[str, Any]]) -> Answer:
    """Of chat and completions: a whole answer is one chunk."""
    answer = Answer([])
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for c in chunk["choices"]:
            while len(answer.choices) <= c["index"]:
                answer.choices.append(Choice())
            _add(answer.choices[c["index"]], c)
        if usage := chunk.get("usage"):
            answer.prompt, answer.tokens = usage["prompt_tokens"], usage["completion_tokens"]
            answer.cached = usage["prompt_tokens_details"]["cached_tokens"]
            answer.reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
            assert usage["total_tokens"] == answer.prompt + answer.tokens
    return answer


def _add(choice: Choice, more: dict[str, Any]) -> None:
    said = more.get("delta") or more.get("message") or {"content": more.get("text")}
    choice.thought += said.get("reasoning_content") or ""
    choice.text += said.get("content") or ""
    for call in said.get("tool_calls") or ():
        if "id" in call:
            choice.calls.append([call["function"]["name"], ""])
        choice.calls[call.get("index", -1)][1] += call["function"]["arguments"]
    choice.reason = more["finish_reason"] or choice.reason
    told = more.get("logprobs")
    if told and "content" in told:
        choice.probabilities += [
            (t["token"], t["logprob"], tuple((o["token"], o["logprob"]) for o in t["top_logprobs"]))
            for t in told["content"]
        ]
    elif told:
        others = [tuple(top.items()) for top in told["top_logprobs"]]
        choice.probabilities += zip(told["tokens"], told["token_logprobs"], others, strict=True)


def _usage(answer: Answer, usage: dict[str, Any]) -> None:
    answer.cached = usage["cache_read_input_tokens"]
    answer.prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    answer.tokens = usage["output_tokens"]


def _message(message: dict[str, Any]) -> Answer:
    choice = Choice(reason=f"{message['stop_reason']} {message['stop_sequence']}")
    for block in message["content"]:
        match block["type"]:
            case "thinking":
                choice.thought += block["thinking"]
            case "text":
                choice.text += block["text"]
            case "tool_use":
                choice.calls.append([block["name"], json.dumps(block["input"])])
    answer = Answer([choice])
    _usage(answer, message["usage"])
    return answer


def _messages_events(told: Sequence[dict[str, Any]]) -> Answer:
    choice, answer = Choice(), Answer([])
    answer.choices.append(choice)
    for event in told:
        assert event["type"] != "error", event
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                choice.calls.append([event["content_block"]["name"], ""])
            case "content_block_delta":
                delta = event["delta"]
                choice.thought += delta.get("thinking", "")
                choice.text += delta.get("text", "")
                if "partial_json" in delta:
                    choice.calls[-1][1] += delta["partial_json"]
            case "message_delta":
                delta = event["delta"]
                choice.reason = f"{delta['stop_reason']} {delta['stop_sequence']}"
                _usage(answer, event["usage"])
    if choice.reason is not None:
        choice.calls = [[name, json.dumps(json.loads(a))] for name, a in choice.calls if _is_json(a)]
    return answer


def _is_json(text: str) -> bool:
    """Whether a call is whole: one that was cut off is left out of a whole message."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _response(response: dict[str, Any]) -> Answer:
    choice = Choice(reason=f"{response['status']} {response['incomplete_details']}")
    for item in response["output"]:
        text = "".join(part["text"] for part in item.get("content") or ())
        match item["type"]:
            case "reasoning":
                choice.thought += text
            case "message":
                choice.text += text
            case "function_call":
                choice.calls.append([item["name"], item["arguments"]])
    usage = response["usage"]
    return Answer(
        [choice],
        prompt=usage["input_tokens"],
        cached=usage["input_tokens_details"]["cached_tokens"],
        tokens=usage["output_tokens"],
        reasoning=usage["output_tokens_details"]["reasoning_tokens"],
    )


def _responses_events(told: Sequence[dict[str, Any]]) -> Answer:
    """By its deltas; the closing event has to say the same."""
    choice = Choice()
    for event in told:
        match event["type"]:
            case "response.reasoning_text.delta":
                choice.thought += event["delta"]
            case "response.output_text.delta":
                choice.text += event["delta"]
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                choice.calls.append([event["item"]["name"], ""])
            case "response.function_call_arguments.delta":
                choice.calls[-1][1] += event["delta"]
            case "response.completed" | "response.incomplete":
                whole = _response(event["response"])
                choice.reason = whole.choices[0].reason
                assert whole.choices[0] == choice
                return whole
            case "error":
                raise AssertionError(event)
    return Answer([choice])

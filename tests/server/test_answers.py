"""What clients get: both routes, streamed and not, through the official client too."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.scripted import END, ScriptedEngine, live, says

TEXT = "Hello, wörld! 🦙 bye"
HI: Any = [{"role": "user", "content": "hi"}]


def chunks(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_chat_whole(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": HI}).json()
    choice = answer["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": TEXT,
        "refusal": None,
        "reasoning_content": None,
    }
    assert choice["finish_reason"] == "stop"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "nano"
    n = len(TEXT.encode())
    assert answer["usage"]["completion_tokens"] == n
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + n
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


def test_chat_stream_shape(client: httpx.Client) -> None:
    got = chunks(client, "/v1/chat/completions", {"messages": HI, "stream_options": {"include_usage": True}})
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in got[:-1]) == TEXT
    assert [c["choices"][0]["finish_reason"] for c in got[:-1]] == [None] * (len(got) - 2) + ["stop"]
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == len(TEXT.encode())
    assert all(c["usage"] is None for c in got[:-1])
    assert len({c["id"] for c in got}) == 1


def test_no_delta_holds_part_of_a_character(client: httpx.Client) -> None:
    deltas = [
        c["choices"][0]["delta"].get("content", "")
        for c in chunks(client, "/v1/chat/completions", {"messages": HI})
    ]
    assert "\ufffd" not in "".join(deltas)
    assert any("🦙" in d for d in deltas)
    cut = client.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 17}).json()["choices"][0]
    assert cut["message"]["content"] == "Hello, wörld! "
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize("tps", [1, 4, 99])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_answer_and_frees_the_engine(tps: int, stream: bool) -> None:
    engine = ScriptedEngine(says(TEXT + "x" * 20_000), tps=tps, pause=0.001)
    with live(engine) as url, httpx.Client(base_url=url) as client:
        body = {"messages": HI, "stop": ["nowhere", "rld"], "logprobs": True}
        if stream:
            got = chunks(client, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in got[:-1])
            told = sum(
                len(c["choices"][0]["logprobs"]["content"]) for c in got[:-1] if c["choices"][0]["logprobs"]
            )
            usage = got[-1]["usage"]
        else:
            answer = client.post("/v1/chat/completions", json=body).json()
            text, usage = answer["choices"][0]["message"]["content"], answer["usage"]
            told = len(answer["choices"][0]["logprobs"]["content"])
            assert answer["choices"][0]["finish_reason"] == "stop"
        assert text == "Hello, wö"
        assert told == len(text.encode())
        assert usage["completion_tokens"] == len("Hello, wörld".encode())
    assert engine.cancelled == [engine.seen[0].id]
    assert not engine.running


def test_choices_share_a_seed_and_differ_in_number(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.seen.clear()
    answer = client.post("/v1/chat/completions", json={"messages": HI, "n": 3, "seed": 7}).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in answer["choices"]] == [TEXT] * 3
    assert [(r.params.seed, r.params.choice) for r in engine.seen] == [(7, 0), (7, 1), (7, 2)]
    assert answer["usage"]["prompt_tokens"] == len(engine.seen[0].prompt)
    assert answer["usage"]["completion_tokens"] == 3 * len(TEXT.encode())
    streamed: dict[int, str] = {0: "", 1: "", 2: ""}
    for chunk in chunks(client, "/v1/chat/completions", {"messages": HI, "n": 3}):
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert set(streamed.values()) == {TEXT}
    seeds = {r.params.seed for r in engine.seen[3:]}
    assert len(seeds) == 1
    assert seeds != {7}


def test_fields_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.seen.clear()
    fields = {
        "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": -1, "frequency_penalty": 0.5, "logit_bias": {"65": -100}, "stop_token_ids": [9],
        "ignore_eos": True, "min_tokens": 2, "max_completion_tokens": 5, "draft": 2, "user": "someone",
        "some_new_field": {"a": 1},
    }  # fmt: skip
    client.post("/v1/chat/completions", json={"messages": HI, **fields}).raise_for_status()
    p = engine.seen[0].params
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.repetition_penalty) == (0, 0.5, 0, 0.1, 1.1)
    assert (p.presence_penalty, p.frequency_penalty, p.logit_bias) == (-1, 0.5, {65: -100})
    assert (p.stop_token_ids, p.ignore_eos, p.max_tokens, p.min_tokens, p.draft) == ((9,), True, 5, 2, 2)
    client.post("/v1/chat/completions", json={"messages": HI}).raise_for_status()
    p = engine.seen[1].params
    assert (p.temperature, p.top_p, p.top_k, p.max_tokens, p.logprobs) == (0.7, 0.95, 20, None, None)


def test_template_settings(client: httpx.Client, engine: ScriptedEngine) -> None:
    for body, expected in (
        ({"reasoning_effort": "none"}, "<think></think>"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>"),
        ({"reasoning_effort": "high"}, "effort xhigh"),
        ({"reasoning_effort": "minimal"}, "effort low"),
        ({}, "assistant\n"),
    ):
        engine.seen.clear()
        client.post("/v1/chat/completions", json={"messages": HI, **body}).raise_for_status()
        assert bytes(t for t in engine.seen[0].prompt if t < 256).decode().endswith(expected)


def test_content_parts_and_developer(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.seen.clear()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    client.post("/v1/chat/completions", json={"messages": messages}).raise_for_status()
    assert bytes(t for t in engine.seen[0].prompt if t < 256) == b"system\nd\nuser\nab\nassistant\n"


def test_logprobs(client: httpx.Client) -> None:
    body = {"messages": HI, "logprobs": True, "top_logprobs": 2, "max_tokens": 10}
    content = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(c["bytes"]) for c in content) == TEXT.encode()[:10]
    assert content[0] | {"top_logprobs": []} == {
        "token": "H",
        "bytes": [72],
        "logprob": -0.5,
        "top_logprobs": [],
    }
    assert [t["token"] for t in content[0]["top_logprobs"]] == ["H", "I"]
    assert content[8]["token"] == "bytes:\\xc3"
    streamed = chunks(client, "/v1/chat/completions", body)
    assert [e for c in streamed for e in (c["choices"][0]["logprobs"] or {}).get("content", ())] == content


def test_completions(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.seen.clear()
    answer = client.post(
        "/v1/completions", json={"prompt": ["ab", "c"], "n": 2, "max_tokens": 50, "echo": True}
    ).json()
    assert answer["object"] == "text_completion"
    assert [c["text"] for c in answer["choices"]] == ["ab" + TEXT] * 2 + ["c" + TEXT] * 2
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    for prompt, ids in (([7], [[7]]), ([[1, 2], [3]], [[1, 2], [3]]), ("hé", [[104, 195, 169]])):
        engine.seen.clear()
        client.post("/v1/completions", json={"prompt": prompt}).raise_for_status()
        assert [r.prompt for r in engine.seen] == ids
        assert engine.seen[0].params.max_tokens == 16


def test_completions_streamed_with_logprobs(client: httpx.Client) -> None:
    body = {"prompt": "ab", "max_tokens": 50, "logprobs": 1, "seed": 1}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]
    got = [c["choices"][0] for c in chunks(client, "/v1/completions", body)]
    assert "".join(c["text"] for c in got) == whole["text"] == TEXT
    for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [x for c in got if c["logprobs"] for x in c["logprobs"][field]] == whole["logprobs"][field]
    offsets = whole["logprobs"]["text_offset"]
    assert TEXT[offsets[TEXT.encode().index(b"bye")] :] == "bye"
    assert [c["finish_reason"] for c in got if c["finish_reason"]] == ["stop"]


def test_models(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()["data"]
    assert [(m["id"], m["max_model_len"]) for m in listed] == [("nano", 256)]
    assert client.get("/v1/models/nano").json() == listed[0]
    assert listed[0]["capabilities"]["chat"] is True and listed[0]["capabilities"]["vision"] is False
    assert client.get("/v1/models/other").status_code == 404


def test_tokens_of_a_text_and_back(client: httpx.Client) -> None:
    text = "wörld <|im_end|>"
    told = client.post("/tokenize", json={"prompt": text}).json()
    assert told["tokens"] == [*"wörld ".encode(), END] and told["count"] == 8 and told["max_model_len"] == 256
    assert client.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": text}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert client.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"messages": [{"role": "robot"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [5, 258]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert client.post("/tokenize", json={"prompt": "x", "model": "other"}).status_code == 404


def test_two_requests_are_not_mixed() -> None:
    engine = ScriptedEngine(lambda request: [request.prompt[0]] * 30)
    with live(engine) as url, httpx.Client(base_url=url) as client:
        answer = client.post("/v1/completions", json={"prompt": ["a", "b", "c"], "max_tokens": 40}).json()
    assert [c["text"] for c in answer["choices"]] == ["a" * 30, "b" * 30, "c" * 30]


def test_keepalive_comments_while_prefilling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextfit.server.stream.KEEPALIVE_SECONDS", 0.02)
    engine = ScriptedEngine(says("ok"), silent=20, pause=0.01)
    with live(engine) as url:
        text = httpx.post(f"{url}/v1/chat/completions", json={"messages": HI, "stream": True}).text
        assert text.index("assistant") < text.index(": keepalive\n\n") < text.index('"content":"o')
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        engine.steps = 0
        stream = client.chat.completions.create(model="nano", messages=HI, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in stream) == "ok"


def test_official_client(client: httpx.Client) -> None:
    sdk = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0)
    whole = sdk.chat.completions.create(model="nano", messages=HI, logprobs=True)
    assert whole.choices[0].message.content == TEXT
    stream = sdk.chat.completions.create(
        model="nano", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    got = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in got if c.choices) == TEXT
    assert got[-1].usage is not None
    assert got[-1].usage.completion_tokens == len(TEXT.encode())
    completion = sdk.completions.create(model="nano", prompt="a", max_tokens=40, stream=True)
    assert "".join(c.choices[0].text for c in completion) == TEXT
    assert [m.id for m in sdk.models.list()] == ["nano"]
    hot: Any = "hot"
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="nano", messages=HI, temperature=hot)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="gpt-5", messages=HI)

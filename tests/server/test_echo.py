"""Prompts that are echoed, with their log-probabilities: case A13 through HTTP, and OpenAI's shapes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from nextfit.llm import logits
from nextfit.server.load import loader
from nextfit.server.service import Service
from nextfit.text import Tokenizer
from tests.server.scripted import CONTEXT, END, running
from tests.server.test_cases import served
from tests.support.scripted_model import PEAK
from tests.support.scripted_server import bundled

CHUNK = 64
SAID = "wörld!".encode()
UNSURE = -math.log(257 + math.exp(PEAK))  # of a token that the scripted model did not mean, of 258


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json={"temperature": 0, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices put together from their events."""
    answer = httpx.post(f"{url}/v1/completions", json={"temperature": 0, "stream": True, **body}, timeout=60)
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
    found: dict[int, dict[str, Any]] = {}
    for event in answer.text.split("\n\n")[:-2]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            assert choice["finish_reason"] or choice["text"] or choice["logprobs"], "an event of nothing"
            one = found.setdefault(choice["index"], {**choice, "text": "", "logprobs": None})
            one["text"] += choice["text"]
            one["finish_reason"] = choice["finish_reason"]
            if (more := choice["logprobs"]) is not None:
                before = one["logprobs"] or dict.fromkeys(more)
                one["logprobs"] = {n: (before[n] or []) + more[n] if more[n] else before[n] for n in more}
    return [found[i] for i in sorted(found)]


@pytest.fixture(scope="module", params=[1, 4])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server that says `SAID` to everything; tokens are bytes, chunks 16 of them."""
    with served(list(SAID), request.param, wrong=2, prefill_chunk=16, sequences=3) as (url, _):
        yield url


PROMPTS: list[tuple[Any, list[str], int]] = [  # as asked, as echoed, tokens
    ("Hello, ", ["Hello, "], 7),
    ("x" * 40, ["x" * 40], 40),
    ([72, 105, 32], ["Hi "], 3),
    ([195, 169, END, 65], ["é<|im_end|>A"], 4),
    ([7], ["\x07"], 1),
    (["ab", "wide: " + "é" * 15, "c"], ["ab", "wide: " + "é" * 15, "c"], 39),
    ([[104], [104, 105] * 12], ["h", "hi" * 12], 25),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("most", "n"), [(0, 1), (1, 3), (20, 2)])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize(("prompt", "echoed", "count"), PROMPTS)
def test_shapes(
    url: str,
    prompt: Any,
    echoed: list[str],
    count: int,
    logprobs: int | None,
    most: int,
    n: int,
    stream: bool,
) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": most, "n": n, "logprobs": logprobs}
    if stream:
        choices = streamed(url, body)
    else:
        answer = post(url, body)
        choices, usage = answer["choices"], answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
            count,
            len(choices) * min(most, len(SAID)),
        )
        assert logprobs is None or usage["prompt_tokens_details"]["cached_tokens"] == 0
    text = SAID[:most].decode(errors="ignore")
    assert [c["text"] for c in choices] == [before + text for before in echoed for _ in range(n)]
    assert {c["finish_reason"] for c in choices} == {"stop" if most > len(SAID) else "length"}
    for choice in choices:
        if logprobs is None:
            assert choice["logprobs"] is None
        else:
            check_shape(choice["text"], choice["logprobs"], logprobs, min(most, len(SAID)))


def check_shape(text: str, told: dict[str, Any], alternatives: int, answered: int) -> None:
    tokens, values, top, offsets = (
        told[n] for n in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert len(tokens) == len(values) == len(offsets)
    assert values[0] is None or len(tokens) == answered
    assert all(v is not None for v in values[1:])
    asked = len(tokens) - answered
    wanted = [
        0 if token == "<|im_end|>" else UNSURE for token in tokens[:asked]
    ]  # it means the end or its answer
    assert all(abs(v - w) < 1e-3 for v, w in zip(values[1:asked], wanted[1:], strict=True))
    assert all(abs(v) < 1e-3 for v in values[asked:])
    if alternatives:
        assert top[0] is None and all(len(t) == alternatives for t in top[1:])
        assert len(top) == len(tokens)
    else:
        assert top is None
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)


def test_the_tokens_of_a_prompt_alone(url: str) -> None:
    """With max_tokens 0 there is no answer; without echo there is nothing."""
    body = {"prompt": "abc", "max_tokens": 0, "logprobs": 1, "echo": True}
    (choice,) = post(url, body)["choices"]
    assert choice["text"] == "abc" and choice["logprobs"]["tokens"] == ["a", "b", "c"]
    (choice,) = post(url, {**body, "echo": False})["choices"]
    assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("", None, "length")
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}
    refused = httpx.post(f"{url}/v1/chat/completions", json=chat)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_a_prefix_that_is_cached(url: str) -> None:
    """The values are those of the first time, before and after others who had the hit."""
    body = {"prompt": "many times: " + "y" * 60, "max_tokens": 4, "logprobs": 2, "echo": True}
    first = post(url, body)
    hit = post(url, {**body, "echo": False})
    assert hit["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    for again in (post(url, body)["choices"], streamed(url, body)):
        assert again == first["choices"]


def test_a_prompt_that_fills_the_context(url: str) -> None:
    for most, status in ((1, 200), (2, 400)):
        body = {"prompt": [65] * (CONTEXT - 1), "echo": True, "logprobs": 1, "max_tokens": most}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=20).status_code == status


@pytest.fixture(scope="module", params=[0, 4])
def model(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server of the bundled model, with drafts or without."""
    options = {"context": 1024, "prefill_chunk": CHUNK, "dtype": "float64", "draft": request.param}
    with running(Service(loader(None, (), options))) as url:
        yield url


def by_hand(ids: list[int]) -> list[float]:
    """The log-probability of every token but the first, from the logits of all in one piece."""
    rows = logits(None, np.array(ids), dtype="float64").astype(np.float64)
    return [float(row[t] - np.log(np.exp(row).sum())) for t, row in zip(ids[1:], rows, strict=False)]


def test_a13_the_bundled_model(model: str) -> None:
    """A prompt of a chunk and five, as text and as ids, cold, warm and with a neighbour in the batch."""
    tokenizer: Tokenizer = bundled()[1]
    ids = [(37 * i) % 250 + 300 for i in range(CHUNK + 5)]
    text = tokenizer.decode(ids, skip_special=False)
    for prompt in (ids, text, [ids, ids[:40]]):
        asked = [ids] if prompt is ids else [tokenizer.encode(text)] if prompt is text else [ids, ids[:40]]
        body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1}
        for choices in (post(model, body)["choices"], streamed(model, body)):
            for choice, own in zip(choices, asked, strict=True):
                told = choice["logprobs"]
                assert len(told["tokens"]) in (len(own), len(own) + 1)
                values, wanted = told["token_logprobs"][: len(own)], by_hand(own)
                assert values[0] is None
                assert all(abs(a - b) < 1e-5 for a, b in zip(values[1:], wanted, strict=True))
                assert len({round(v, 3) for v in wanted}) > 20, "they are all but equal"
                likeliest = [max(top.values()) for top in told["top_logprobs"][1 : len(own)]]
                assert all(b >= a - 1e-9 for a, b in zip(values[1:], likeliest, strict=True))
    assert httpx.get(f"{model}/health").status_code == 200


def test_a13_values_of_an_answer(model: str) -> None:
    """The same with drafts as without, and no zeros."""
    body = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 32}
    body |= {"logprobs": True, "top_logprobs": 5, "ignore_eos": True}
    one, other = (
        httpx.post(f"{model}/v1/chat/completions", json=body | {"draft": draft}, timeout=60)
        for draft in (None, 0)
    )
    found = [answer.json()["choices"][0]["logprobs"]["content"] for answer in (one, other)]
    assert [len(tokens) for tokens in found] == [32, 32]
    for a, b in zip(*found, strict=True):
        assert a["token"] == b["token"] and abs(a["logprob"] - b["logprob"]) < 1e-9 and a["logprob"] < 0
        assert [t["token"] for t in a["top_logprobs"]] == [t["token"] for t in b["top_logprobs"]]
        assert len(a["top_logprobs"]) == 5
        for x, y in zip(a["top_logprobs"], b["top_logprobs"], strict=True):
            assert abs(x["logprob"] - y["logprob"]) < 1e-9 and x["logprob"] < 0


def test_the_official_client(model: str) -> None:
    client = openai.OpenAI(base_url=f"{model}/v1", api_key="none", max_retries=0)
    settings: Any = {"prompt": "Good morning", "echo": True, "logprobs": 2, "max_tokens": 0}
    whole = client.completions.create(model="nextfit", **settings).choices[0]
    assert whole.text == "Good morning" and whole.logprobs is not None
    assert whole.logprobs.token_logprobs is not None and whole.logprobs.token_logprobs[0] is None
    (event, last) = client.completions.create(model="nextfit", stream=True, **settings)
    assert event.choices[0].logprobs == whole.logprobs and last.choices[0].finish_reason == "length"

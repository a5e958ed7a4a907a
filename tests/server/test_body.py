"""A body that is too large or nested too deep is refused before it is parsed, and nobody else notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextfit.server.body import nesting
from nextfit.server.config import HttpConfig
from tests.server.scripted import ScriptedEngine, live, says
from tests.server.test_refusals import CHAT, HI, JSON, TEXT, refusal

TYPED = {"Content-Type": "application/json"}


def pieces(body: bytes) -> Iterator[bytes]:
    """Sent chunked, so without a declared length."""
    for i in range(0, len(body), 100):
        yield body[i : i + 100]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    http = HttpConfig(body_limit=1 << 20, json_depth=40)
    with live(ScriptedEngine(says("abc")), http) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def deep(levels: int) -> str:
    """A chat request that is nested so deep."""
    kwargs = '{"a":' * (levels - 1) + "1" + "}" * (levels - 1)
    return f'{{"messages":{json.dumps(HI)},"chat_template_kwargs":{kwargs},"max_tokens":3}}'


@pytest.mark.parametrize("sent", [str.encode, lambda body: pieces(body.encode())])
def test_too_deep(client: httpx.Client, sent: Any) -> None:
    assert client.post(CHAT, content=sent(deep(40)), headers=TYPED).status_code == 200
    for levels in (41, 500, 100_000):
        error = refusal(client.post(CHAT, content=sent(deep(levels)), headers=TYPED), 400)
        assert error["code"] == "body_too_deep"
        assert error["message"] == (
            f"the body is nested {levels} levels deep, the limit is 40 (--json-depth)"
        )
    assert client.get("/health").status_code == 200


def test_too_deep_for_anthropic(client: httpx.Client) -> None:
    error = client.post("/v1/messages", content=deep(41), headers=TYPED).json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert "--json-depth" in error["error"]["message"]


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '{"\\"]}":'])
def test_no_parser_has_seen_it(client: httpx.Client, opening: str) -> None:
    """It is no JSON either, which only a parser can tell."""
    answer = client.post(TEXT, content=opening * 50_000, headers=TYPED)
    assert refusal(answer, 400)["code"] == "body_too_deep"


@pytest.mark.parametrize("text", ["[" * 100, '"[{' * 50, "\\[" * 50, '\\"' + "{" * 100, "[\\"])
def test_brackets_in_a_text_are_none(client: httpx.Client, text: str) -> None:
    body = {
        "messages": [{"role": "user", "content": text}],
        "chat_template_kwargs": {text: [text]},
        "max_tokens": 3,
    }
    assert client.post(CHAT, json=body).status_code == 200


def levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


TEXTS = st.text('[]{}"\\a', max_size=8)
NESTED = st.recursive(
    JSON | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(NESTED, st.booleans())
def test_nesting(value: Any, escape: bool) -> None:
    assert nesting(json.dumps(value, ensure_ascii=escape).encode("utf-8", "surrogatepass")) == levels(value)


@given(st.binary(max_size=40))
def test_nesting_of_anything(body: bytes) -> None:
    assert 0 <= nesting(body) <= len(body)


def test_too_large(client: httpx.Client) -> None:
    body = json.dumps({"prompt": "a" * (1 << 20)}).encode()
    error = refusal(client.post(TEXT, content=body, headers=TYPED), 413)
    assert error["code"] == "body_too_large"
    assert f"{len(body)} bytes or more, the limit is 1048576 (--body-limit)" in error["message"]
    error = refusal(client.post(TEXT, content=pieces(body), headers=TYPED), 413)
    assert error["code"] == "body_too_large"
    assert "the limit is 1048576 (--body-limit)" in error["message"]
    answer = client.post("/v1/messages", content=pieces(body), headers=TYPED)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_others_never_notice() -> None:
    engine = ScriptedEngine(says("x" * 200), pause=0.002)
    with live(engine, HttpConfig(json_depth=40, body_limit=1 << 20)) as url:
        answers: list[str] = []

        def ask() -> None:
            answer = httpx.post(f"{url}{TEXT}", json={"prompt": "b", "max_tokens": 200}, timeout=20)
            answers.append(answer.json()["choices"][0]["text"])

        neighbour = threading.Thread(target=ask)
        neighbour.start()
        for body, status in ((deep(100_000), 400), ("[" * (1 << 20), 400), ("[" * (2 << 20), 413)):
            assert httpx.post(f"{url}{CHAT}", content=body, headers=TYPED).status_code == status
            assert httpx.get(f"{url}/health").status_code == 200
        neighbour.join(20)
        assert answers == ["x" * 200]
        assert len(engine.seen) == 1

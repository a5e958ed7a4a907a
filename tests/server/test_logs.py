"""Log lines: one a request, with its id, and nothing of what anybody wrote."""

from __future__ import annotations

import re
import shlex

import httpx
import pytest

from nextfit.server import logs
from tests.server.scripted import ScriptedEngine, live, says

SECRET = "my secret words"


def lines(text: str) -> list[dict[str, str]]:
    found = []
    for line in text.splitlines():
        at, level, what, *pairs = shlex.split(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
        found.append({"level": level, "what": what} | dict(p.split("=", 1) for p in pairs))
    return found


def test_a_line_for_each_request(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    with live(ScriptedEngine(says(f"{SECRET} answered"))) as url, httpx.Client(base_url=url) as client:
        chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 9}
        whole = client.post("/v1/chat/completions", json=chat, headers={"x-request-id": 'of "a" gateway'})
        client.post(
            "/v1/completions", json={"prompt": SECRET, "stop": "ans", "stream": True, "max_tokens": 50}
        )
        refused = client.post("/v1/completions", json={"prompt": SECRET, "top_k": SECRET})
        client.get(f"/no/{SECRET.replace(' ', '%0a')}?key={SECRET}")
        client.get("/health")
        client.post("/v1/completions", json={"prompt": "?"})
    text = capfd.readouterr().err
    first, second, third, fourth, fifth = lines(text)
    assert whole.headers["x-request-id"] == first["id"] == whole.json()["id"].removeprefix("chatcmpl-")
    assert (
        first.items()
        >= {
            "level": "INFO",
            "client_id": 'of "a" gateway',
            "method": "POST",
            "path": "/v1/chat/completions",
            "status": "200",
            "prompt_tokens": str(whole.json()["usage"]["prompt_tokens"]),
            "cached_tokens": "16",
            "completion_tokens": "9",
            "finish": "length",
        }.items()
    )
    assert (second["finish"], second["completion_tokens"]) == ("stop", str(len(f"{SECRET} ans")))
    assert (third["status"], third["error"]) == ("400", "invalid_value")
    assert refused.headers["x-request-id"] == third["id"]
    assert len({first["id"], second["id"], third["id"], fourth["id"]}) == 4
    assert text.count(SECRET) == 0
    assert (fourth["status"], fourth["error"]) == ("404", "not_found")
    assert (fifth["status"], fifth["finish"], fifth["error"]) == ("500", "error", "500")
    assert len(text.splitlines()) == 5


def test_levels(capfd: pytest.CaptureFixture[str]) -> None:
    for level, expected in (
        ("debug", {"/v1/models", "/health"}),
        ("info", {"/v1/models"}),
        ("warning", set()),
    ):
        logs.configure(level)
        with live(ScriptedEngine(says("x"))) as url:
            httpx.get(f"{url}/v1/models")
            httpx.get(f"{url}/health")
        assert {line["path"] for line in lines(capfd.readouterr().err)} == expected


def test_a_client_that_leaves_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    engine = ScriptedEngine(says("x" * 10_000), pause=0.001)
    with live(engine, context=20_000) as url:
        body = {"prompt": "a", "stream": True, "max_tokens": 10_000}
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
            next(answer.iter_lines())
    (line,) = lines(capfd.readouterr().err)
    assert (line["finish"], line["prompt_tokens"]) == ("abort", "1")
    assert 0 < int(line["completion_tokens"]) < 10_000

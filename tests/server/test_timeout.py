"""A request that takes too long is ended in the engine, in any phase, and its client is told."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import httpx
import openai
import pytest

from nextfit.config import GenerationDefaults
from nextfit.server.config import HttpConfig
from nextfit.server.engine_main import offer
from nextfit.server.generation import Generation
from tests.server.scripted import CONTEXT, END, EngineThread, ScriptedEngine, live, says, wait_for
from tests.server.test_disconnect import send
from tests.support import scripted_model

MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 200_000},
}
SAID = "the answer is not finished after 0.3 s (--request-timeout)"
HTTP = HttpConfig(request_timeout=0.3)


def endless(**options: Any) -> ScriptedEngine:
    return ScriptedEngine(says("x" * 200_000), pause=0.002, **options)


def error_of(answer: httpx.Response, path: str) -> dict[str, Any]:
    """The error of an answer or of its last event."""
    if answer.status_code == 200:
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        body = json.loads(data[-1])
    else:
        body = answer.json()
    if path == "/v1/responses" and answer.status_code == 200:
        assert body["type"] == "error"
        return dict(body)
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize("silent", [0, 10**9])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(ROUTES))
def test_each_api(path: str, stream: bool, silent: int) -> None:
    engine = endless(silent=silent)
    with live(engine, HTTP, context=2**20) as url:
        body = {"max_tokens": 200_000, **ROUTES[path], "stream": stream}
        if path == "/v1/responses":
            body["max_output_tokens"] = body.pop("max_tokens")
        began = time.monotonic()
        answer = httpx.post(f"{url}{path}", json=body, timeout=20)
        assert 0.3 <= time.monotonic() - began < 2
        assert answer.status_code == (200 if stream else 504)
        error = error_of(answer, path)
        assert error["message"] == SAID
        if path == "/v1/messages":
            assert error["type"] == "timeout_error"
        else:
            assert error["code"] == "timeout"
        wait_for(lambda: not engine.running, 1)
        assert engine.cancelled == [engine.seen[0].id]
        assert (httpx.get(f"{url}/health").status_code, engine.silent) == (200, silent)


def test_all_choices() -> None:
    engine = endless()
    with live(engine, HTTP, context=2**20) as url:
        body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 200_000}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 504
        wait_for(lambda: not engine.running, 1)
        assert len(set(engine.cancelled)) == 4


def test_one_that_waits_in_the_queue() -> None:
    """The real engine computes one request at a time; both of these are ended, and the next one is answered."""
    model = scripted_model.ScriptedModel(258, END, scripted_model.never, pause=0.02)
    engine = scripted_model.ScriptedEngine(
        lambda prompt: b"x" * (3 if prompt[0] == ord("c") else 200), model=model, context=CONTEXT, sequences=1
    )
    with (
        live(EngineThread(offer(engine, GenerationDefaults((END,)))), HTTP) as url,
        httpx.Client(base_url=url) as client,
    ):
        first = send(url, "/v1/completions", {"prompt": "a", "max_tokens": 200})
        wait_for(lambda: "num_requests_running 1" in client.get("/metrics").text)
        assert client.post("/v1/completions", json={"prompt": "b", "max_tokens": 200}).status_code == 504
        assert first.recv(4096).startswith(b"HTTP/1.1 504")
        answer = client.post("/v1/completions", json={"prompt": "c", "max_tokens": 9}).json()
        assert answer["choices"][0]["text"] == "xxx"
        wait_for(lambda: not engine.has_work(), 1)


def test_nobody_reads_the_answer() -> None:
    """Its events, 10 MB at first, are stuck in the sockets, so the server waits to send."""
    engine = endless()
    with live(engine, HttpConfig(request_timeout=2), context=2**20) as url:
        fields = {"prompt": "a" * 600_000, "echo": True, "stream": True, "n": 16, "max_tokens": 200_000}
        client = send(url, "/v1/completions", fields)
        wait_for(lambda: len(engine.running) == 16)
        wait_for(lambda: not engine.running, 4)
        client.close()


def test_official_clients_do_not_try_again() -> None:
    engine = endless()
    with live(engine, HTTP, context=2**20) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=2)
        with pytest.raises(openai.InternalServerError, match="--request-timeout"):
            client.completions.create(model="nano", prompt="a", max_tokens=200_000)
        assert len(engine.seen) == 1


def test_what_is_finished_in_time() -> None:
    engine = ScriptedEngine(says("x" * 50), pause=0.001)
    with live(engine, HTTP) as url, httpx.Client(base_url=url, timeout=20) as client:
        for path, body in ROUTES.items():
            assert client.post(path, json={**body, "max_tokens": 200}).status_code == 200
        time.sleep(0.4)
        assert engine.cancelled == []
        assert "timeout" not in client.get("/metrics").text
        engine.pause = 0.05
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 200}).status_code == 504
        assert 'errors_total{code="timeout"} 1.0' in client.get("/metrics").text


def test_nothing_is_kept_for_the_time_that_was_left() -> None:
    with live(ScriptedEngine(says("ok")), HttpConfig(request_timeout=60)) as url:
        for stream in (False, True):
            assert (
                httpx.post(f"{url}/v1/completions", json={"prompt": "a", "stream": stream}).status_code == 200
            )
        wait_for(lambda: gc.collect() >= 0 and not [g for g in gc.get_objects() if type(g) is Generation])

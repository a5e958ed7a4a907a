"""Cases A15 and B32: a client that goes away takes its work with it, at once, in any phase."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message

from nextfit.server.stream import EventStream
from tests.server.scripted import ScriptedEngine, live, says, wait_for


def send(url: str, path: str, body: Mapping[str, object]) -> socket.socket:
    """A request on a socket of its own, so that the test decides when it is torn down."""
    at = urlsplit(url)
    assert at.hostname is not None
    client = socket.create_connection((at.hostname, at.port or 0), timeout=10)
    data = json.dumps(body).encode()
    headers = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    client.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode() + data)
    return client


@pytest.mark.parametrize("stream", [False, True])
def test_a15_before_the_first_token(stream: bool) -> None:
    engine = ScriptedEngine(says("never"), silent=10**9, pause=0.001)
    with live(engine, context=32_768) as url:
        for round in range(25):
            client = send(url, "/v1/completions", {"prompt": [65] * 20_000, "stream": stream, "n": 2})
            if round % 2:
                wait_for(lambda: len(engine.running) == 2)
            client.close()
            wait_for(lambda seen=2 * (round + 1): len(engine.seen) == seen and not engine.running)  # type: ignore[misc]
        assert engine.cancelled == [r.id for r in engine.seen]
        engine.silent = 0
        assert (
            httpx.post(f"{url}/v1/completions", json={"prompt": "a"}).json()["choices"][0]["text"] == "never"
        )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a15_in_mid_answer(path: str) -> None:
    engine = ScriptedEngine(says("x" * 10**6), pause=0.001)
    body = {
        "prompt": "a",
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "max_tokens": 10**6,
    }
    with live(engine, context=2**20) as url:
        for _ in range(25):
            client = send(url, path, body)
            got = b""
            while b'"x' not in got:
                got += client.recv(4096)
            client.close()
            wait_for(lambda: not engine.running)
        assert httpx.get(f"{url}/health").status_code == 200


def test_a15_in_mid_answer_not_streamed() -> None:
    engine = ScriptedEngine(says("x" * 10**6), pause=0.001)
    with live(engine, context=2**20) as url:
        client = send(url, "/v1/completions", {"prompt": "a", "max_tokens": 10**6})
        wait_for(lambda: engine.steps > 5)
        client.close()
        wait_for(lambda: not engine.running)


def test_neighbours_never_notice() -> None:
    engine = ScriptedEngine(lambda request: [request.prompt[0]] * 200, pause=0.001)
    with live(engine) as url:
        answers: list[str] = []

        def ask() -> None:
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "b", "max_tokens": 200}, timeout=20)
            answers.append(answer.json()["choices"][0]["text"])

        neighbour = threading.Thread(target=ask)
        neighbour.start()
        for _ in range(10):
            send(url, "/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 200}).close()
        neighbour.join(20)
        assert answers == ["b" * 200]
        wait_for(lambda: not engine.running)


def test_a_reader_that_does_not_read_does_not_stall_others() -> None:
    engine = ScriptedEngine(says("x" * 200_000), tps=1000)
    with live(engine, context=2**20) as url:
        slow = send(
            url, "/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 200_000, "logprobs": 5}
        )
        wait_for(lambda: engine.steps >= 5)
        engine.script = says("ok")
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "b"}).json()["choices"][0]["text"] == "ok"
        assert httpx.get(f"{url}/health").elapsed.total_seconds() < 1
        slow.close()


def test_an_answer_that_ends_as_its_client_leaves_is_no_lost_exception() -> None:
    asyncio.run(_end_and_leave())


async def _end_and_leave() -> None:
    lost: list[Mapping[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, what: lost.append(what))
    leaves, ends = loop.create_future(), loop.create_future()

    async def receive() -> Message:
        await leaves
        return {"type": "http.disconnect"}

    async def sent(_: Message) -> None:
        pass

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {}
        await ends

    answer = EventStream(events(), close=lambda: None)({"type": "http"}, receive, sent)
    task = asyncio.ensure_future(answer)
    await asyncio.sleep(0.05)
    leaves.set_result(None)
    ends.set_result(None)
    await task
    gc.collect()
    await asyncio.sleep(0)
    assert not lost

"""Clients that read nothing, say nothing, or say it byte by byte: nobody else notices, and nothing of them stays."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.scripted import ScriptedEngine, live, says, wait_for
from tests.server.test_disconnect import send

TEXT = "Hello, wörld!"
SECONDS = 1.0  # that somebody else's answer may take at most, on a busy machine


def connect(url: str) -> socket.socket:
    at = urlsplit(url)
    return socket.create_connection((at.hostname or "", at.port or 0), timeout=20)


def others_notice_nothing(url: str) -> None:
    for _ in range(5):
        start = time.monotonic()
        assert httpx.get(f"{url}/health").status_code == 200
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "b", "max_tokens": 20})
        assert answer.json()["choices"][0]["text"] == TEXT
        assert time.monotonic() - start < SECONDS


def test_a_dead_reader() -> None:
    """Answers that nobody reads, until all buffers are full, and then no answer more."""
    engine = ScriptedEngine(says(TEXT), tps=64)
    with live(engine, context=2**20) as url:
        engine.script = says("x" * 30_000)
        bodies = {"prompt": "a", "max_tokens": 30_000, "stream": True, "logprobs": 5}
        dead = [send(url, "/v1/completions", bodies) for _ in range(4)]
        wait_for(lambda: len(engine.seen) == 4)
        engine.script = says(TEXT)
        others_notice_nothing(url)
        wait_for(lambda: not engine.running, 60)
        others_notice_nothing(url)
        for client in dead:
            client.close()
        others_notice_nothing(url)


def test_connections_that_say_nothing() -> None:
    with live(ScriptedEngine(says(TEXT))) as url, ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(connect(url))
        others_notice_nothing(url)


def test_a_request_byte_by_byte() -> None:
    """It is answered too, once it is whole."""
    with live(ScriptedEngine(says(TEXT))) as url, connect(url) as client:
        body = json.dumps({"prompt": "b", "max_tokens": 20}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        request = f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(request)):
            if at % 50 == 0:
                others_notice_nothing(url)
            client.sendall(request[at : at + 1])
            time.sleep(0.002)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == TEXT


@pytest.mark.parametrize(
    "sent", [b"X: " + b"y" * 200_000, b"".join(b"X%d: y\r\n" % i for i in range(20_000))]
)
def test_headers_without_end(sent: bytes) -> None:
    """They are refused once there are too many of them."""
    with live(ScriptedEngine(says(TEXT))) as url, connect(url) as client:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has hung up
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + sent)
            assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
        others_notice_nothing(url)

"""Start and end: 503 until ready, reasons told, SIGTERM drains, a real process exits as it should."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from nextfit.errors import CheckpointError, ConfigError
from nextfit.server.config import HttpConfig
from nextfit.server.run import _bind, serve
from nextfit.server.service import Served, Service
from tests.server.scripted import ScriptedEngine, live, load, says, unready, wait_for

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parent.parent.parent
BODY = {"prompt": "a", "max_tokens": 300}


def loading_service(gate: threading.Event, error: Exception | None = None) -> Service:
    def gated(report: Callable[[str], None]) -> Served:
        report("the model is loading: 3 of 9 MiB")
        gate.wait(10)
        if error is not None:
            raise error
        return load(ScriptedEngine(says("hello")))(report)

    return Service(gated)


def test_503_with_the_progress_until_ready() -> None:
    gate = threading.Event()
    with unready(loading_service(gate)) as url:
        wait_for(lambda: "3 of 9 MiB" in httpx.get(f"{url}/health").text)
        for answer in (
            httpx.get(f"{url}/health"),
            httpx.get(f"{url}/v1/models"),
            httpx.post(f"{url}/v1/completions", json=BODY),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "not_ready"
            assert "3 of 9 MiB" in answer.json()["error"]["message"]
        gate.set()
        wait_for(lambda: httpx.get(f"{url}/health").json() == {"status": "ok"})
        assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 200


def test_a_failed_load_is_told() -> None:
    gate = threading.Event()
    gate.set()
    with unready(loading_service(gate, CheckpointError("a.gguf: truncated"))) as url:
        wait_for(lambda: "loading failed: a.gguf: truncated" in httpx.get(f"{url}/health").text)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_told_and_nobody_hangs(stream: bool) -> None:
    engine = ScriptedEngine(says("x" * 100), die_at=4)
    with live(engine) as url:
        answer = httpx.post(f"{url}/v1/completions", json={**BODY, "stream": stream}, timeout=10)
        assert "the engine stopped: ZeroDivisionError: planted" in answer.text
        assert answer.status_code == (200 if stream else 500)
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503
        assert "planted" in health.json()["error"]["message"]
        assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 503


def test_http_answers_while_a_step_runs() -> None:
    gate = threading.Event()
    with live(ScriptedEngine(says("x"), gate=gate)) as url:
        thread = threading.Thread(target=httpx.post, args=(f"{url}/v1/completions",), kwargs={"json": BODY})
        thread.start()
        for _ in range(20):
            assert httpx.get(f"{url}/health").elapsed.total_seconds() < 0.5
        gate.set()
        thread.join()


PROGRAM = """
import sys
from pathlib import Path
from nextfit.errors import NextFitError
from nextfit.server.config import HttpConfig
from nextfit.server.run import serve
from tests.server.scripted import ScriptedEngine, load, says

drain, tokens = float(sys.argv[1]), int(sys.argv[2])
engine = ScriptedEngine(says("x" * tokens), pause=0.01)
http = HttpConfig(port=0, drain=drain)
serve(load(engine), http, lambda text: print(text, flush=True))
"""


@contextmanager
def process(drain: float, tokens: int = 100) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own and its URL, once it says that it is ready."""
    command = [sys.executable, "-c", PROGRAM, str(drain), str(tokens)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            assert said.startswith("ready at http://127.0.0.1:")
            yield server, said.removeprefix("ready at ").split(";")[0]
        finally:
            server.kill()


def test_sigterm_drains() -> None:
    with process(drain=20) as (server, url):
        answers: list[httpx.Response] = []
        ask = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=BODY)))
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={**BODY, "stream": True}, timeout=20
        ) as stream:
            ask.start()
            time.sleep(0.3)
            server.send_signal(signal.SIGTERM)
            wait_for(lambda: refused(url))
            assert server.poll() is None
            text = "".join(stream.iter_text())
        assert text.count('"text":"x"') == 100
        assert text.endswith("data: [DONE]\n\n")
        ask.join(10)
        assert answers[0].json()["choices"][0]["text"] == "x" * 100
        assert server.wait(10) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_sigterm_ends_answers_that_take_too_long() -> None:
    with process(drain=1, tokens=6_000) as (server, url):
        body, path, answers = {**BODY, "max_tokens": 6_000}, f"{url}/v1/completions", []
        ask = threading.Thread(target=lambda: answers.append(httpx.post(path, json=body, timeout=20)))
        ask.start()
        with httpx.stream("POST", path, json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            start = time.monotonic()
            server.send_signal(signal.SIGTERM)
            *_, told, done = (line for line in lines if line)
        assert json.loads(told.removeprefix("data: "))["error"]["code"] == "stopping"
        assert done == "data: [DONE]"
        ask.join(10)
        assert answers[0].status_code == 503 and answers[0].json()["error"]["code"] == "stopping"
        assert server.wait(10) == 0
        assert time.monotonic() - start < 10  # the answers take 60 s
        assert server.stderr is not None and "Traceback" not in server.stderr.read()


def test_ctrl_c_and_idle_sigterm() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with process(drain=5) as (server, _):
            server.send_signal(number)
            assert server.wait(10) == 0


def test_sigterm_while_loading() -> None:
    """The thread that loads cannot be asked to stop; the process ends all the same."""
    program = """
import sys, time
from nextfit.server.config import HttpConfig
from nextfit.server.run import serve
serve(lambda report: time.sleep(1000), HttpConfig(port=int(sys.argv[1]), drain=5), print)
"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", program, str(port)], cwd=ROOT) as server:
        try:
            wait_for(lambda: not refused(f"http://127.0.0.1:{port}"), 30)
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 503
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0
        finally:
            server.kill()


def refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=1)
    except httpx.ConnectError:
        return True
    return False


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        http = HttpConfig(port=port)
        with pytest.raises(ConfigError, match=rf"port {port}.*--port"):
            serve(load(ScriptedEngine(says("x"))), http, print)
    with pytest.raises(ConfigError, match="no such host|not known|resolution"):
        serve(load(ScriptedEngine(says("x"))), HttpConfig("no.such.host.invalid"), print)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_token_waits_for_no_acknowledgement(host: str) -> None:
    """Otherwise small writes are held back until the client has confirmed the one before, which takes it 40 ms."""
    with (
        _bind(host, 0) as listener,
        socket.create_connection(listener.getsockname()[:2]),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

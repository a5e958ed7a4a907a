"""The engine in its own process: its death is told, its parent's death ends it, HTTP never waits for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from nextfit.cli import run
from nextfit.models import default_path
from nextfit.server.messages import VERSION
from nextfit.server.service import Service
from tests.server.process import scripted
from tests.server.scripted import live, load, running, unready, wait_for

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parent.parent.parent
BODY = {"prompt": "a", "max_tokens": 200}


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


def complete(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=BODY | fields, timeout=20)


@pytest.mark.parametrize("stream", [False, True])
def test_killed_in_mid_answer(stream: bool, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with live(scripted("x" * 10_000, pause=0.002, pid_file=str(file))) as url:
        answers: list[httpx.Response] = []
        ask = threading.Thread(target=lambda: answers.append(complete(url, stream=stream, max_tokens=9_000)))
        ask.start()
        time.sleep(0.2)
        os.kill(pids(file)[0], signal.SIGKILL)
        ask.join(1)
        assert not ask.is_alive()
        line = answers[0].text.strip().split("\n\n")[-2] if stream else answers[0].text
        error = json.loads(line.removeprefix("data: "))["error"]
        assert error["message"].startswith("the engine stopped: its process was ended by SIGKILL")
        assert (error["type"], error["code"]) == ("server_error", "engine_error")
        assert answers[0].status_code == (200 if stream else 500)
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503
        assert "SIGKILL" in health.json()["error"]["message"]
        assert complete(url).status_code == 503


def test_killed_while_loading(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    ended: list[Exception | None] = []
    service = Service(load(scripted(slow=100, pid_file=str(file))), ended.append)
    with unready(service) as url:
        wait_for(lambda: "3 of 9 MiB" in httpx.get(f"{url}/health").text)
        os.kill(pids(file)[0], signal.SIGKILL)
        wait_for(lambda: "SIGKILL" in httpx.get(f"{url}/health").text, 1)
        wait_for(lambda: len(ended) == 1)
        assert "ended by SIGKILL" in str(ended[0])


def test_restart_three_times_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with live(scripted("hello", pid_file=str(file)), restart=True) as url:
        for lives in range(1, 4):
            os.kill(pids(file)[-1], signal.SIGKILL)
            wait_for(lambda lives=lives: f"{lives} of 3" in httpx.get(f"{url}/health").text, 1)  # type: ignore[misc]
            wait_for(lambda: httpx.get(f"{url}/health").status_code == 200)
            assert complete(url).json()["choices"][0]["text"] == "hello"
            assert len(pids(file)) == lives + 1
        os.kill(pids(file)[-1], signal.SIGKILL)
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 503, 1)
        time.sleep(0.3)
        assert "started again" not in httpx.get(f"{url}/health").text
        assert len(pids(file)) == 4


def test_an_exception_in_a_step_is_restarted_too() -> None:
    with live(scripted("x" * 50, die_at=20), restart=True) as url:
        answer = complete(url)
        assert answer.status_code == 500
        assert "the engine stopped: ZeroDivisionError: planted" in answer.text
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200)
        assert complete(url, max_tokens=10).json()["choices"][0]["text"] == "x" * 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"refuse": "a.gguf: truncated"}, "loading failed: a.gguf: truncated"),
        ({"import_error": True}, "its process ended with exit code 1"),
        ({"version": 0}, f"the server speaks version {VERSION} of the messages, the engine version 0"),
    ],
)
def test_what_cannot_start_says_why(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    service = Service(load(scripted(**options, pid_file=str(file)), restart="import_error" not in options))
    with unready(service) as url:
        wait_for(lambda: "loading failed" in httpx.get(f"{url}/health").text)
        assert expected in httpx.get(f"{url}/health").text
        assert len(pids(file)) == 1  # what is refused once is refused again


def test_health_answers_while_a_step_lets_no_thread_run() -> None:
    with live(scripted("hello", hold=0.4)) as url, httpx.Client(base_url=url) as client:
        ask = threading.Thread(target=complete, args=(url,))
        ask.start()
        took = []
        while ask.is_alive():
            start = time.perf_counter()
            assert client.get("/health").status_code == 200
            took.append(time.perf_counter() - start)
        assert len(took) > 40
        assert sorted(took)[len(took) * 9 // 10] < 0.05


def test_nothing_is_lost_or_out_of_order() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(1_000))
    with live(scripted(text, tps=1, context=10_000)) as url:

        def ask(number: int) -> str:
            if number % 2:
                return complete(url, max_tokens=9_000).json()["choices"][0]["text"]
            lines = complete(url, max_tokens=9_000, stream=True).text.split("\n\n")
            return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2])

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(ask, range(6))) == [text] * 6


def test_damaged_weights_are_refused_as_everywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Only the engine's process sees them; the message and the exit code are those of `chat`."""
    copy = tmp_path / "model"
    shutil.copytree(default_path(), copy)
    with (copy / "model.safetensors").open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        name = next(n for n in header if n.endswith("layers.0.hc_attn.norm.weight") or "layernorm" in n)
        file.seek(8 + size + header[name]["data_offsets"][0])
        file.write(b"\xff" * 4)  # NaN as BF16 and as F32
    said = []
    for command in (["serve", str(copy), "--port", "0"], ["chat", str(copy)]):
        assert run([*command, "--context", "64"]) == 2
        said.append(capfd.readouterr().err)
    assert said[0].startswith("nextfit: ")
    assert said[0].count("\n") == 1
    assert name in said[0]
    assert said[1].endswith(said[0])


def test_flush_cache() -> None:
    with live(scripted()) as url:
        assert httpx.post(f"{url}/flush_cache").json() == {"status": "ok"}
        assert complete(url).json()["choices"][0]["text"] == "hello"


PROGRAM = """
import json, sys
from nextfit.server.config import HttpConfig
from nextfit.server.run import serve
from tests.server.process import scripted
from tests.server.scripted import load

http = HttpConfig(port=0, drain=5)
serve(load(scripted(**json.loads(sys.argv[1]))), http, lambda text: print(text, flush=True))
"""


@contextmanager
def served(tmp_path: Path, **options: Any) -> Iterator[tuple[subprocess.Popen[str], int, Callable[[], str]]]:
    """A server process, its engine's process id, and a function that waits until it is ready for its URL."""
    file, temporary = tmp_path / "pids", tmp_path / "tmp"
    temporary.mkdir()
    arguments = json.dumps({"text": "x" * 10_000, "pause": 0.002, "pid_file": str(file), **options})
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, arguments],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            wait_for(lambda: bool(pids(file)))
            (engine,) = pids(file)
            out = server.stdout
            assert out is not None
            yield server, engine, lambda: out.readline().removeprefix("ready at ").split(";")[0]
            wait_for(lambda: not alive(engine), 2)
            wait_for(lambda: not list(temporary.iterdir()), 2)
        finally:
            server.kill()


@pytest.mark.parametrize("options", [{}, {"hold": 1000}, {"slow": 1000}])
def test_a_killed_server_leaves_nothing_behind(options: dict[str, Any], tmp_path: Path) -> None:
    """Idle, in a step that lets no thread run, and while loading."""
    with served(tmp_path, **options) as (server, engine, ready):
        if "slow" not in options:
            url = ready()
            with httpx.stream("POST", f"{url}/v1/completions", json=BODY | {"stream": True}) as answer:
                time.sleep(0.2)
                assert answer.status_code == 200
        assert alive(engine)
        server.kill()


def test_a_server_killed_at_once_leaves_nothing_behind(tmp_path: Path) -> None:
    with served(tmp_path) as (server, _, _):
        server.kill()


@pytest.mark.parametrize("options", [{}, {"slow": 1000}])
def test_ctrl_c_in_a_terminal_ends_both(options: dict[str, Any], tmp_path: Path) -> None:
    """The terminal sends it to the whole group; a running answer is finished first."""
    with served(tmp_path, **options) as (server, _, ready):
        if "slow" in options:
            time.sleep(0.5)
            os.killpg(server.pid, signal.SIGINT)
        else:
            with httpx.stream("POST", f"{ready()}/v1/completions", json=BODY | {"stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                os.killpg(server.pid, signal.SIGINT)
                assert sum('"text":"x"' in line for line in lines) == 199
        assert server.wait(5) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_the_service_manager_signals_every_process(tmp_path: Path) -> None:
    with served(tmp_path) as (server, engine, ready):
        with httpx.stream("POST", f"{ready()}/v1/completions", json=BODY | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(engine, signal.SIGTERM)
            server.send_signal(signal.SIGTERM)
            assert sum('"text":"x"' in line for line in lines) == 199
        assert server.wait(5) == 0


def test_queue_limit() -> None:
    options = {"sequences": 2, "pause": 0.002, "context": 10_000}
    with running(Service(load(scripted("x" * 9_000, **options), queue=3))) as url:
        running_stream = {"max_tokens": 9_000, "stream": True}
        with (
            httpx.stream("POST", f"{url}/v1/completions", json=BODY | running_stream | {"n": 4}) as first,
            httpx.Client(base_url=url) as client,
        ):
            assert first.status_code == 200
            refused = client.post("/v1/completions", json=BODY | {"n": 2})
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert "2 requests wait already and this one adds 2; at most 3 may wait" in error["message"]
            assert "--queue" in error["message"]
            assert client.post("/v1/completions", json=BODY | {"max_tokens": 1}).status_code == 200
            never = client.post("/v1/completions", json=BODY | {"n": 6})
            assert never.status_code == 400
            assert "6 answers are asked for at once" in never.json()["error"]["message"]
        wait_for(lambda: complete(url, n=5, max_tokens=1).status_code == 200)


def test_a_number_that_no_message_can_hold() -> None:
    with live(scripted()) as url:
        answer = complete(url, max_tokens=2**70)
        assert answer.status_code == 400
        assert "64 bits" in answer.json()["error"]["message"]
        assert complete(url).status_code == 200

"""The command that `make serve` runs, on the bundled model, asked by the official client."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import openai
import pytest

from nextfit.server.load import loader
from nextfit.server.service import Served, Service
from tests.server.scripted import running, wait_for
from tests.server.test_disconnect import send

ROOT = Path(__file__).parent.parent.parent
HI: Any = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[int, str]]:
    """The running server's process id and what it printed when it was ready."""
    command = [
        sys.executable,
        "-m",
        "nextfit",
        "serve",
        "--port",
        "0",
        "--context",
        "4096",
        "--api-key",
        "a key",
        "--cors-origin",
        "https://chat.example",
        "--log-level",
        "warning",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            text = server.stdout.readline()
            assert text, server.stderr.read()
            server.stdout.readline()
            yield server.pid, text + server.stdout.readline()
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()


@pytest.fixture(scope="module")
def said(started: tuple[int, str]) -> str:
    return started[1]


@pytest.fixture(scope="module")
def client(said: str) -> openai.OpenAI:
    found = re.match(r"ready at (\S+); try:", said)
    assert found is not None
    return openai.OpenAI(base_url=f"{found[1]}/v1", api_key="a key", max_retries=0, timeout=100)


def said_in(message: Any) -> str:
    """Thought and answer; random weights know no difference."""
    return (message.reasoning_content or "") + (message.content or "")


def test_operators_tell_their_routes(client: openai.OpenAI) -> None:
    client.chat.completions.create(model="nextfit", messages=HI, max_tokens=2)

    def choices() -> list[dict[str, Any]]:
        url = str(client.base_url).replace("/v1/", "/debug/routes")
        found: list[dict[str, Any]] = httpx.get(url, headers={"x-api-key": "a key"}).json()["operators"]
        return found

    wait_for(lambda: bool(choices()))
    norm = next(c for c in choices() if c["operator"] == "norm.rms_norm")
    assert (norm["route"], norm["reason"], norm["rows"]) == ("reference", "triton: not for cpu", "any")
    assert norm["format"] in ("float32", "bfloat16") and norm["calls"] > 0


def test_browsers(said: str) -> None:
    found = re.match(r"ready at (\S+); try:", said)
    assert found is not None
    asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(f"{found[1]}/v1/chat/completions", headers=asked).status_code == 200
    assert httpx.get(f"{found[1]}/health", headers={"Host": "evil.example"}).status_code == 403


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[str, str | None, int]:
    chunks = client.chat.completions.create(
        model="nextfit", messages=HI, stream=True, stream_options={"include_usage": True}, **fields
    )
    text, reason, tokens = "", None, 0
    for chunk in chunks:
        if chunk.choices:
            delta = chunk.choices[0].delta
            text += getattr(delta, "reasoning_content", None) or delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
    return text, reason, tokens


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    text, reason, tokens = streamed(client, max_tokens=24, temperature=0)
    assert text
    assert reason in ("stop", "length")
    assert 0 < tokens <= 24
    whole = client.chat.completions.create(model="nextfit", messages=HI, max_tokens=24, temperature=0)
    assert said_in(whole.choices[0].message) == text
    assert whole.choices[0].finish_reason == reason
    assert client.models.list().data[0].id == "nextfit"


def test_torch_is_in_the_engine_process_alone(started: tuple[int, str]) -> None:
    server, _ = started
    tasks = Path(f"/proc/{server}/task").iterdir()
    (engine,) = {child for task in tasks for child in (task / "children").read_text().split()}
    has_torch = {pid: "libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in (str(server), engine)}
    assert has_torch == {str(server): False, engine: True}


def test_the_line_to_paste(said: str, client: openai.OpenAI) -> None:
    """Carried out as curl would: the URL, the headers and the body of the printed line."""
    words = shlex.split(said.splitlines()[1].replace("$KEY", "a key"))
    assert words[:2] == ["curl", "-N"]
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    answer = httpx.post(words[2], headers=headers, content=words[words.index("-d") + 1], timeout=100)
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")


def test_neighbours_and_drafts_change_nothing(client: openai.OpenAI) -> None:
    """The same request alone, among others, and without drafts."""
    fields: Any = {"max_tokens": 16, "temperature": 0, "logprobs": True, "top_logprobs": 2}

    def ask(**extra: Any) -> Any:
        return client.chat.completions.create(model="nextfit", messages=HI, **fields, **extra).choices[0]

    alone = ask()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda _: ask(), range(4)))
    for other in [*together, ask(extra_body={"draft": 0})]:
        assert said_in(other.message) == said_in(alone.message) != ""
    assert [len(t.top_logprobs) for t in alone.logprobs.content] == [2] * len(alone.logprobs.content)


def test_refused_by_the_engine(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="4096.*--context") as caught:
        client.chat.completions.create(model="nextfit", messages=HI, max_tokens=5000)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="nextfit", prompt=[5000])
    assert caught.value.param == "prompt"
    assert client.completions.create(model="nextfit", prompt=[7], max_tokens=2).usage.prompt_tokens == 1  # type: ignore[union-attr]


def test_a15_what_a_client_held_is_free_when_it_leaves() -> None:
    """On the real engine in its process: 200 clients leave at random moments, or end; all comes back."""
    options = {"context": 8_192, "prefill_chunk": 64, "sequences": 2}
    loaded: list[Served] = []

    def load(report: Callable[[str], None]) -> Served:
        loaded.append(loader(None, (), options)(report))
        return loaded[0]

    with running(Service(load)) as url:
        worker = loaded[0].worker

        def held_by_nobody() -> bool:
            g = worker.gauges
            return g is not None and not (g.running or g.waiting or g.pages or g.cached_pages or g.snapshots)

        wait_for(held_by_nobody)
        random, held = Random(1), []
        for _ in range(200):
            prompt, limit = [65] * random.choice((1, 10, 1_000)), random.choice((1, 10_000))
            limit = min(limit, 8_192 - len(prompt))
            body = {
                "prompt": prompt,
                "stream": random.random() < 0.5,
                "max_tokens": limit,
                "ignore_eos": True,
            }
            held.append(send(url, "/v1/completions", body))
            if len(held) > 4:
                held.pop(random.randrange(5)).close()
            time.sleep(random.random() * 0.02)
        wait_for(lambda: worker.gauges is not None and worker.gauges.running == 2)
        for client in held:
            client.close()
        worker.flush_cache()
        wait_for(held_by_nobody, 30)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": [7], "max_tokens": 2}, timeout=60)
        assert answer.status_code == 200

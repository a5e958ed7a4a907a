"""200 streams at once, some read slowly, some left: nobody loses or gets another's tokens, and /health answers."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.long.server import CHAT, COMPLETIONS, Server, idle, started
from tests.support.poller import polling
from tests.support.scripted_server import MODULE

STREAMS, SLOW, LEAVING = 200, 20, 20
TOKENS_PER_STEP, SEQUENCES = 2, 64  # so most of them wait first
HEALTH_SECONDS = 0.1  # 99 of 100 answers


def name(number: int) -> str:
    return f"[{number}]"


def text(number: int) -> str:
    """What stream `number` is told."""
    return "é" + " ".join(f"{number}.{i}" for i in range(120))


async def ask(url: str, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a stream on a connection of its own: a chat, or a prompt that is echoed."""
    at = urlsplit(url)
    if number % 2:
        path, body = CHAT, {"messages": [{"role": "user", "content": name(number)}], "enable_thinking": False}
    else:
        path, body = COMPLETIONS, {"prompt": text(number), "max_tokens": 1000}
    data = json.dumps(body | {"stream": True, "temperature": 0}).encode()
    reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=1 << 12)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return reader, writer


def said(answer: bytes) -> tuple[str, str, bool]:
    """The text of a stream, why it ended, and whether it was whole."""
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: ")]
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines if line != b"data: [DONE]"]
    choices = [choice for event in events for choice in event["choices"]]
    pieces = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    return "".join(pieces), choices[-1]["finish_reason"], lines[-1] == b"data: [DONE]"


async def stream(url: str, number: int, rng: random.Random) -> None:
    reader, writer = await ask(url, number)
    answer = b""
    if number < LEAVING:
        for _ in range(rng.randint(0, 20)):
            answer += await reader.readline()
    elif number < LEAVING + SLOW:
        while piece := await reader.read(400):
            answer += piece
            await asyncio.sleep(0.02)
    else:
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    if number >= LEAVING:
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert said(answer) == (text(number), "stop", True), number


async def streams(url: str) -> None:
    await asyncio.gather(*(stream(url, number, random.Random(number)) for number in range(STREAMS)))


@pytest.mark.timeout(300)
def test_200_streams(record_property: Callable[[str, object], None]) -> None:
    answers = {name(number): text(number) for number in range(1, STREAMS, 2)}
    options = {
        "answers": answers,
        "tokens_per_step": TOKENS_PER_STEP,
        "sequences": SEQUENCES,
        "snapshots": 0,
        "context": 2048,
    }
    with started(MODULE, json.dumps(options)) as server:
        before = idle(server)
        with polling(server.url) as seconds:
            asyncio.run(streams(server.url))
        after = idle(server)
        closing = 2  # files of connections that asked for these figures
        held = {n: after[n] for n in after if after[n] > before[n] + closing * n.endswith("files")}
        assert not held, before
        assert ended(server, "stop") + ended(server, "abort") == STREAMS
        assert ended(server, "abort") > LEAVING / 2
    p99 = statistics.quantiles(seconds, n=100)[98]
    record_property("seen", {"/health under load, ms at the 99th percentile": round(p99 * 1e3)})
    assert len(seconds) > 100
    assert p99 < HEALTH_SECONDS, p99


def ended(server: Server, reason: str) -> float:
    return server.gauge(f'request_success_total{{finished_reason="{reason}"}}')

"""What the server's own process takes for a streamed token: `python -m bench.stream_overhead [--streams 64]`.

A real server on the scripted model, whose engine is another process; the streams are read by this one. Counted is all
CPU time of the server's process, every thread of it, user and system, from before the first request is sent until the
last answer is read, divided by the tokens: so parsing and templates of the requests too, and idle polling. Nothing is
subtracted. The bound is 0.15 ms a token at 64 chats, one token a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.scripted_server import MODULE

BOUND = 0.15  # ms a token
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def cpu(pid: int) -> float:
    """Seconds that the process has computed, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def read(url: str, path: str, tokens: int) -> int:
    """One stream, to its end: how many events it had."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    body = {"max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    body |= (
        {"prompt": "go on"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "go on"}]}
    )
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.read(-1)
    writer.close()
    assert b" 200 " in answer[:20], answer
    ends = b'"output_tokens":%d' % tokens if path == MESSAGES else b'"completion_tokens":%d' % tokens
    assert ends in answer, answer[-500:]
    return answer.count(b"data: ")


async def together(url: str, path: str, streams: int, tokens: int) -> int:
    return sum(await asyncio.gather(*(read(url, path, tokens) for _ in range(streams))))


def measure(path: str, streams: int, tokens: int, tokens_per_step: int) -> None:
    options = {
        "answers": {"go on": "tea " * tokens},  # at least a token each
        "sequences": streams,
        "context": tokens + 200,
        "tokens_per_step": tokens_per_step,
    }
    command = [sys.executable, "-m", MODULE, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.match(r"ready at (\S+);", server.stdout.readline())
            assert found is not None
            asyncio.run(together(found[1], path, streams, 20))  # warms up
            start, before = time.perf_counter(), cpu(server.pid)
            events = asyncio.run(together(found[1], path, streams, tokens))
            took, wall = cpu(server.pid) - before, time.perf_counter() - start
        finally:
            server.send_signal(signal.SIGTERM)
    count = streams * tokens
    one = took / count * 1e3
    what = f"{path}, {tokens_per_step} a step"
    print(f"{what:40}{one:8.3f} ms a token{'' if one <= BOUND else '  (over)'}", end="")
    print(f"{wall / count * 1e3:10.3f} ms of wall clock{events / count:8.2f} events a token", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500)
    args = parser.parse_args()
    print(f"{args.streams} streams of {args.tokens} tokens, load {os.getloadavg()[0]:.1f}")
    for path, tokens_per_step in ((CHAT, 1), (COMPLETIONS, 1), (MESSAGES, 1), (CHAT, 5)):
        measure(path, args.streams, args.tokens, tokens_per_step)


if __name__ == "__main__":
    main()

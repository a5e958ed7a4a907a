"""Asks /health a hundred times a second, in a process that does nothing else: `python -m tests.support.poller URL`.

Ends when its standard input does, and says in JSON how many seconds each answer took.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


@contextmanager
def polling(url: str) -> Iterator[list[float]]:
    """Seconds of each answer while the block ran, once it has ended; every one of them was 200."""
    command = [sys.executable, "-m", __name__, url]
    seconds: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "polls\n"
        try:
            yield seconds
        finally:
            said, _ = process.communicate(timeout=20)
    seconds += json.loads(said)


def main() -> None:
    seconds = []
    with httpx.Client(base_url=sys.argv[1], timeout=20) as client:
        print("polls", flush=True)
        while not select.select([sys.stdin], [], [], 0.01)[0]:
            start = time.perf_counter()
            client.get("/health").raise_for_status()
            seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()

"""A server in a process of its own, and what it holds."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

STUCK_SECONDS = 120.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Server:
    """`nextfit serve` in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    engine: int  # process id

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=STUCK_SECONDS).text
        found = re.search(rf"^nextfit:{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def in_use(self) -> dict[str, float]:
        """What requests and the cache hold, of every kind, and open files of both processes."""
        names = ["running", "waiting"]
        used = {n: self.gauge(f"num_requests_{n}") for n in names}
        names = ["pages_used", "pages_cached", "host_pages_used", "slots_used", "snapshots_used"]
        used |= {n: self.gauge(n) for n in names}
        for name, pid in ("server", self.process.pid), ("engine", self.engine):
            used[f"{name}'s files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return used

    def memory(self) -> float:
        """Resident MiB of both processes."""
        total = 0
        for pid in (self.process.pid, self.engine):
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            assert found is not None
            total += int(found[1])
        return total / 1024


def serving(options: Mapping[str, object]) -> AbstractContextManager[Server]:
    """A server on the bundled model."""
    words = [str(w) for pair in options.items() for w in pair]
    return started("nextfit", "serve", "--port", "0", *words)


@contextmanager
def started(module: str, *words: str) -> Iterator[Server]:
    """A module that serves: ready, and ended without a word when the block has ended."""
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            found = re.match(r"ready at (\S+); try:", process.stdout.readline())
            assert found is not None, process.stderr.read()
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            (engine,) = {int(child) for task in tasks for child in (task / "children").read_text().split()}
            yield Server(process, found[1], engine)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            said = process.stderr.read()
            assert said == "", said
        finally:
            process.kill()


def idle(server: Server) -> dict[str, float]:
    """What is in use when everybody has left and the cache is flushed."""
    deadline = time.monotonic() + STUCK_SECONDS
    while server.gauge("num_requests_running") + server.gauge("num_requests_waiting"):
        assert time.monotonic() < deadline, "requests are still running"
        time.sleep(0.1)
    httpx.post(f"{server.url}/flush_cache", timeout=STUCK_SECONDS).raise_for_status()
    time.sleep(1.5)  # idle connections are closed, and what is in use is told again
    return server.in_use()

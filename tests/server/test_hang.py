"""An engine that gives no sign of life: it is told, ended, and with `restart` started again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.server.process import scripted
from tests.server.scripted import live, wait_for
from tests.server.test_process import alive, complete, pids

pytestmark = pytest.mark.alone

REASON = "the engine stopped: no sign of life for 1 s (--engine-timeout)"


def test_a_step_that_does_not_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pids"
    with live(scripted("hello", pause=1000, pid_file=str(file)), timeout=1) as url:
        start = time.monotonic()
        answer = complete(url)
        assert 1 <= time.monotonic() - start < 4
        assert answer.status_code == 500 and REASON in answer.text
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503 and REASON in health.json()["error"]["message"]
        assert complete(url).status_code == 503
        wait_for(lambda: not alive(pids(file)[0]), 1)
    assert "in step" in capfd.readouterr().err  # where it hung


def test_a_stopped_process_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with live(scripted("hello", pid_file=str(file)), timeout=1, restart=True) as url:
        assert complete(url).json()["choices"][0]["text"] == "hello"
        os.kill(pids(file)[0], signal.SIGSTOP)
        answer = complete(url)
        assert answer.status_code == 500 and REASON in answer.text
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200)
        assert complete(url).json()["choices"][0]["text"] == "hello"
        assert len(pids(file)) == 2 and not alive(pids(file)[0])


def test_what_is_slow_is_not_hung() -> None:
    """Steps that let no thread run, and idleness, both longer in all than the limit."""
    with live(scripted("h", hold=0.6), timeout=1) as url:
        assert complete(url).json()["choices"][0]["text"] == "h"
        time.sleep(1.2)
        assert httpx.get(f"{url}/health").status_code == 200

"""Rules of the whole suite: no network, and no skip that tests/skips.txt does not list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

# Read by libraries when a test, or a process that it starts, imports them. Oracles must not reach for a hub.
# Test models are so small that a second thread mostly waits: on a busy machine a step takes 40 times as long.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="1")
os.environ.setdefault(
    "TRITON_INTERPRET", "1"
)  # kernels run without a GPU; tests.device.kernels runs them on one

SKIPS = Path(__file__).with_name("skips.txt")
UNLISTED = pytest.StashKey[list[str]]()


def read_skips(text: str) -> list[str]:
    """Prefixes of the test ids that may skip. A line is `<prefix> <reason>`; a reason is required."""
    prefixes = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        prefix, _, reason = line.partition(" ")
        if not reason.strip():
            raise pytest.UsageError(f"{SKIPS.name}:{number}: {prefix} has no reason")
        prefixes.append(prefix)
    return prefixes


def pytest_configure(config: pytest.Config) -> None:
    config.stash[UNLISTED] = []
    config.pluginmanager.register(_SkipGate(config, read_skips(SKIPS.read_text())))


class _SkipGate:
    def __init__(self, config: pytest.Config, allowed: list[str]) -> None:
        self.allowed = tuple(allowed)
        self.found = config.stash[UNLISTED]

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        expected_failure = hasattr(report, "wasxfail")
        if report.skipped and not expected_failure and not report.nodeid.startswith(self.allowed):
            self.found.append(report.nodeid)

    pytest_runtest_logreport = _note
    pytest_collectreport = _note

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """With pytest-xdist: what a worker found, skips while it collected among them."""
        self.found += getattr(node, "workeroutput", {}).get("unlisted", [])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["unlisted"] = self.found
        if self.found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            terminalreporter.section("skips that tests/skips.txt does not list", red=True)
            for nodeid in dict.fromkeys(self.found):
                terminalreporter.line(nodeid)

"""How much is run, and a closing table of what happened in it."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--models", type=int, default=10, help="random models; each is given 200 random traces")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    models = metafunc.config.getoption("--models")
    for name, count in ("model", models), ("some_model", -(-models // 5)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(count))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sums of what tests gave to `record_property` under the name "seen"."""
    total: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "seen":
                total.update(value)
    if total:
        terminalreporter.section("what happened")
        for what, count in sorted(total.items()):
            terminalreporter.line(f"{count:9,}  {what}")

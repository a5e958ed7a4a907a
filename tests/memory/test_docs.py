"""docs/memory.md shows what the code says today."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextfit.cli import run
from tools import memory_picture

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = ["plan", str(DOCS / "released"), "--weights", memory_picture.FORMATS, "--gpu", "4x16GiB", "--host"]


def test_picture_is_current() -> None:
    assert memory_picture.PICTURE.read_text() == memory_picture.draw(memory_picture.example())


def test_worked_example_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join((DOCS / "memory.md").read_text().split())
    assert run([*COMMAND, "64GiB"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index(" owner") : shown.index("gpu:0 to gpu:3:")]
    assert " ".join(table.split()) in text
    assert run([*COMMAND, "36GiB"]) == 2
    assert " ".join(capsys.readouterr().err.split()) in text

"""docs/tested.md says where a case is tested; the tests carry its name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([AB]\d+(?:, [AB]\d+)*) \|.*\| (.*) \|$", re.MULTILINE)


def missing(page: str) -> list[str]:
    """Cases without a test of their name in a file that the page gives for them."""
    found = []
    for cases, files in ROW.findall(page):
        for file in re.findall(r"`([^`]+)`", files):
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            for case in cases.split(", "):
                if not re.search(rf"def test_(\w+_)?{case.lower()}_", text):
                    found.append(f"{case}: {file}")
    return found


def test_every_case_of_the_page_has_its_tests() -> None:
    page = (ROOT / "docs" / "tested.md").read_text()
    assert len(ROW.findall(page)) >= 16 and missing(page) == []


def test_a_missing_test_is_seen() -> None:
    page = "| A6, B99 | x | `tests/ops/test_experts.py` |\n| A7 | y | `tests/none.py` |\n"
    assert missing(page) == ["B99: tests/ops/test_experts.py", "A7: tests/none.py"]

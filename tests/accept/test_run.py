"""`nextfit accept --tasks` on the trained model: few questions, the whole way to the table, the JSON and the page."""

from __future__ import annotations

from html.parser import HTMLParser
from json import loads
from pathlib import Path
from random import Random

import pytest

from nextfit.accept.arithmetic import lanes
from nextfit.accept.page import page
from nextfit.accept.run import Answer
from nextfit.accept.score import ACCEPTED_BOUND, BOUNDS, drafts, scores
from nextfit.cli import run
from nextfit.models import default_path
from nextfit.text.events import Reply

NANO = default_path().parent / "nano"


class Text(HTMLParser):
    """What a reader of a page sees, and the tags that were opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.seen += data


def read(html: str) -> str:
    text = Text()
    text.feed(html)
    assert not text.open
    return text.seen


@pytest.mark.timeout(300)
def test_every_task_is_asked_and_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "tasks.html"
    code = run(f"accept {NANO} --tasks --samples 1 --lengths 512 --json --html {html}".split())
    values = loads(capfd.readouterr().out)
    tasks = {t["task"]: t for t in values["tasks"]}
    missed = [n for n, t in tasks.items() if t["bound"] is not None and t["right"] < t["bound"] * t["asked"]]
    missed += [d["temperature"] for d in values["drafts"] if d["mean"] < ACCEPTED_BOUND]
    assert code == bool(missed)
    assert {n for n in BOUNDS if not n.startswith("retrieval")} <= tasks.keys()
    assert sum(t["asked"] for n, t in tasks.items() if n != "natural end") == tasks["natural end"]["asked"]
    for task in tasks.values():
        assert (task["right"], task["asked"]) == tuple(map(sum, zip(*task["groups"].values(), strict=True)))
    assert tasks["natural end"]["share"] > 0.9 and tasks["questions about NextFit"]["share"] > 0.5
    for found in values["drafts"]:
        assert found["rounds"] > 100 and sorted(found["by_depth"], reverse=True) == found["by_depth"]
    seen = read(html.read_text("utf-8"))
    assert all(name in seen for name in tasks) and ("Failed" in seen) == bool(code)


def answer(content: str, right: bool) -> Answer:
    (case,) = lanes(Random(1), 1)[0]
    return Answer(case, Reply(content=content), right, True, 5, 0, 9, (4, 2))


@pytest.mark.parametrize(("wrong", "passed"), [(1, True), (2, False)])
def test_bound(wrong: int, passed: bool) -> None:
    answers = [answer("", i >= wrong) for i in range(10)]
    task, end = scores(answers)
    assert (task.right, task.asked, task.passed) == (10 - wrong, 10, passed)
    assert end.task == "natural end" and end.passed
    low, high = task.interval()
    assert low < task.share < high


def test_drafts() -> None:
    found = drafts(0.6, 4, [answer("", True)])  # of two rounds, four and two drafts were right
    assert found.by_depth == [1, 1, 0.5, 0.5] and found.mean == 3 and found.passed


def test_an_answer_is_no_markup_of_the_page() -> None:
    answers = [answer("<script>alert(1)</script>", False)]
    values = {
        "version": "1", "model": "m", "seed": 1, "samples": 1, "lengths": [], "dtype": "auto", "seconds": 1.0,
        "answer_tokens": 1, "prompt_tokens": 1, "cached_tokens": 0, "tasks": [s.values() for s in scores(answers)],
        "drafts": [drafts(0, 4, answers).values()] * 2, "passed": False,
    }  # fmt: skip
    html = page(values)
    assert "<script" not in html and "<script>alert(1)</script>" in read(html)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--tasks"),
        ("--tasks --lengths 100", "512"),
        ("--tasks --lengths x", "--lengths"),
        ("--tasks --html nowhere/x.html", "nowhere is not a folder"),
    ],
)
def test_refused(flags: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(f"accept {NANO} {flags}".split()) == 2
    assert said in capfd.readouterr().err

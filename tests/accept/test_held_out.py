"""The tasks are of no use for training, and what is right or wrong is told apart."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

from nextfit.accept import arithmetic, conversation, facts, retrieval, tools, words
from nextfit.text.events import Call, Reply
from train import tasks as trained
from train import words as taught
from train.tools import tools as trained_tools

ROOT = Path(__file__).parents[2]


def grams(text: str) -> set[tuple[str, ...]]:
    found = text.split()
    return {tuple(found[i : i + 13]) for i in range(len(found) - 12)}


def test_training_does_not_import_the_tasks() -> None:
    for file in (ROOT / "train").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("nextfit.accept") for name in names), file


def test_no_thirteen_words_in_common_with_training() -> None:
    r = Random(3)
    held = [*arithmetic.lanes(r, 10), *conversation.recall(r, 60), *tools.calls(r, 60), *facts.lanes(r, 3)]
    held += retrieval.lanes(r, 3, (1024,), lambda text: len(text.split()))
    asked = {g for lane in held for case in lane for m in case.messages for g in grams(str(m["content"]))}
    assert len(asked) > 1000
    seen = set()
    for _ in range(1500):
        seen |= {g for m in trained.draw(r, 1024, 0.05).messages for g in grams(str(m["content"]))}
    assert len(seen) > 1000 and not asked & seen


def test_names_and_functions_are_not_taught() -> None:
    assert not {*words.GIVEN, *words.FAMILY} & {*taught.GIVEN, *taught.FAMILY}
    assert not {*words.PLACES} & {*taught.PLACES}
    r = Random(4)
    names = {
        schema["function"]["name"]
        for _ in range(3000)
        for schema in trained_tools(r, lambda text, thought: {"role": "assistant", "content": text})[1]
    }
    assert len(names) > 3000 and not names & {f.name for f in tools.FUNCTIONS}


def test_right_and_wrong() -> None:
    r = Random(5)
    (case,) = arithmetic.lanes(r, 1)[3]
    assert case.right(Reply(content=f"1 + 2 = {case.expected}"))
    assert not case.right(Reply(content=f"1 + 2 = {case.expected}1"))
    (case,) = tools.calls(r, 1)[0]
    name, _, arguments = case.expected.partition("(")
    assert case.right(Reply(calls=[Call(name, arguments[:-1])]))
    assert not case.right(Reply(calls=[Call(name, "{}")])) and not case.right(Reply(content="no"))
    _, lane = retrieval.document(r, 600, lambda text: len(text.split()))
    assert [c.right(Reply(content=c.expected)) for c in lane[:-1]] == [True] * len(retrieval.DEPTHS)
    assert not lane[0].right(Reply(content=f"{lane[0].expected} or {lane[1].expected}"))
    assert not lane[-1].right(Reply(content=lane[0].expected))

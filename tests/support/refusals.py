"""Which refusals of a source file were reached: every place that makes an error message, by line.

A refusal is a `raise` with an exception, a yielded message, a message added to a list of problems, or a
returned one. `reached` runs code under a line tracer that only watches the given files.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

Site = tuple[str, int]  # file name, first line


def _is_message(node: ast.expr | None) -> bool:
    """A text with words in it, or a list, a comprehension or a choice of such."""
    if isinstance(node, ast.List) and node.elts:
        return _is_message(node.elts[0])
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return _is_message(node.elt)
    if isinstance(node, ast.IfExp):
        return _is_message(node.body)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    )


def _is_problems(node: ast.expr) -> bool:
    return "problems" in (getattr(node, "attr", ""), getattr(node, "id", ""))


def _refuses(node: ast.stmt, returns: bool) -> bool:
    if isinstance(node, ast.Raise):
        return node.exc is not None
    if isinstance(node, ast.Return):
        return returns and _is_message(node.value)
    if isinstance(node, ast.AugAssign):
        return _is_problems(node.target) and _is_message(node.value)
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Yield):
        return _is_message(node.value.value)
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and _is_problems(call.func.value)
        and (call.func.attr == "append" or (call.func.attr == "extend" and _is_message(call.args[0])))
    )


def sites(files: Iterable[Path], returns: Iterable[str] = ()) -> set[Site]:
    """Refusals in `files`; those named in `returns` also refuse by returning a message."""
    found = set()
    for file in files:
        tree = ast.parse(file.read_text())
        found |= {
            (str(file), node.lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and _refuses(node, file.name in set(returns))
        }
    return found


def reached(wanted: set[Site], runs: Iterable[Callable[[], object]]) -> set[Site]:
    """The sites of `wanted` that are executed while all of `runs` run."""
    files = {file for file, _ in wanted}
    found: set[Site] = set()

    def lines(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return lines

    def calls(frame: FrameType, _event: str, _: Any) -> Any:
        return lines if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        for run in runs:
            run()
    finally:
        sys.settrace(before)
    return found & wanted


def spell(found: Iterable[Site]) -> Iterator[str]:
    for file, line in sorted(found):
        text = Path(file).read_text().splitlines()[line - 1].strip()
        yield f"{Path(file).name}:{line}: {text}"

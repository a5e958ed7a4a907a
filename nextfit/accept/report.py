"""Scores of a run for people, as a table or a page, and for programs, as JSON."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from nextfit.errors import ConfigError


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--lengths is {text!r}, expected numbers such as 2048,8192") from None
    for length in found:
        if length < 512:
            raise ConfigError(f"--lengths has {length}, expected at least 512 tokens")
    return found


def _print(values: dict[str, Any]) -> None:
    table = Table("task", "right", "share", "95 % interval", "at least")
    for s in values["tasks"]:
        low, high = s["interval"]
        colour = "default" if s["bound"] is None else "green" if s["passed"] else "red"
        bound = "" if s["bound"] is None else f"{s['bound']:.0%}"
        right = f"{s['right']} of {s['asked']}"
        table.add_row(s["task"], right, f"[{colour}]{s['share']:.1%}", f"{low:.0%} to {high:.0%}", bound)
    for d in values["drafts"]:
        colour = "green" if d["passed"] else "red"
        each = " ".join(f"{p:.0%}" for p in d["by_depth"])
        name = f"drafts of a round, temperature {d['temperature']:g}"
        table.add_row(name, f"{d['rounds']} rounds", f"[{colour}]{d['mean']:.2f}", each, str(d["bound"]))
    Console().print(table)


def accept_tasks(
    model: Path | None, seed: int, samples: int, lengths: str, dtype: str, json: bool, html: Path | None
) -> int:
    """Run the tasks with a progress bar on stderr, print the scores; the exit code, 1 below the bounds."""
    from nextfit.accept.page import page
    from nextfit.accept.tasks import Plan, run

    if html is not None and not html.parent.is_dir():
        raise ConfigError(f"--html {html}: {html.parent} is not a folder")
    plan = Plan(seed, samples, _lengths(lengths))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        loading, asking = bar.add_task("loading", total=None), bar.add_task("asking", total=None)
        values = run(
            model, plan, dtype,
            lambda done, total: bar.update(loading, completed=done, total=total),
            lambda done, total: bar.update(asking, completed=done, total=total),
        )  # fmt: skip
    if html is not None:
        html.write_text(page(values), "utf-8")
    print(dumps(values, indent=1)) if json else _print(values)
    return 0 if values["passed"] else 1

"""From answers to scores, and whether they are good enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from nextfit.accept.run import Answer

# The least share of right answers that passes, for the model that ships with the package.
BOUNDS = {
    "arithmetic": 0.90,
    "retrieval at 2048 tokens": 0.95,
    "retrieval at 8192 tokens": 0.95,
    "retrieval at 32768 tokens": 0.80,
    "recall": 0.90,
    "tool call": 0.80,
    "questions about NextFit": 0.80,
    "natural end": 0.99,
}
ACCEPTED_BOUND = 2.0  # drafts of a round of 4, on average
_SHOWN = 6  # wrong answers kept of each task


@dataclass(frozen=True)
class Score:
    """`right` of `asked`; `groups` by what the task varies."""

    task: str
    right: int
    asked: int
    groups: dict[str, tuple[int, int]]
    wrong: list[dict[str, str]]  # some, to look at

    @property
    def share(self) -> float:
        return self.right / self.asked

    @property
    def bound(self) -> float | None:
        return BOUNDS.get(self.task)

    @property
    def passed(self) -> bool:
        return self.bound is None or self.share >= self.bound

    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        n, p, z = self.asked, self.share, 1.96
        centre, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)

    def values(self) -> dict[str, Any]:
        low, high = self.interval()
        return {
            "task": self.task, "right": self.right, "asked": self.asked, "share": self.share, "interval": [low, high],
            "bound": self.bound, "passed": self.passed, "wrong": self.wrong,
            "groups": {k: list(v) for k, v in self.groups.items()},
        }  # fmt: skip


def _wrong(answer: Answer) -> dict[str, str]:
    calls = " ".join(f"{c.name}({c.arguments})" for c in answer.reply.calls)
    return {
        "asked": str(answer.case.messages[-1]["content"])[-200:],
        "expected": answer.case.expected,
        "answered": f"{answer.reply.content}{calls}"[:300],
    }


def _score(task: str, answers: Sequence[Answer], rights: Sequence[bool]) -> Score:
    groups: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for answer, right in zip(answers, rights, strict=True):
        a, b = groups[answer.case.group]
        groups[answer.case.group] = (a + right, b + 1)
    wrong = [_wrong(a) for a, right in zip(answers, rights, strict=True) if not right][:_SHOWN]
    return Score(task, sum(rights), len(answers), dict(groups), wrong)


def scores(answers: Sequence[Answer]) -> list[Score]:
    """One for each task, and one for ending by itself, over all of them."""
    by_task: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_task[answer.case.task].append(answer)
    found = [_score(task, some, [a.passed for a in some]) for task, some in by_task.items()]
    by_end = _score("natural end", answers, [a.ended for a in answers])
    tasks = {task: (sum(a.ended for a in some), len(some)) for task, some in by_task.items()}
    return [*found, Score("natural end", by_end.right, by_end.asked, tasks, by_end.wrong)]


@dataclass(frozen=True)
class Drafts:
    """How often the first, second ... draft of a round became part of an answer, at one temperature."""

    temperature: float
    rounds: int
    by_depth: list[float]

    @property
    def mean(self) -> float:
        """Accepted drafts of a round."""
        return sum(self.by_depth)

    @property
    def passed(self) -> bool:
        return self.mean >= ACCEPTED_BOUND

    def values(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature, "rounds": self.rounds, "by_depth": self.by_depth, "mean": self.mean,
            "bound": ACCEPTED_BOUND, "passed": self.passed,
        }  # fmt: skip


def drafts(temperature: float, depth: int, answers: Iterable[Answer]) -> Drafts:
    rounds = [n for a in answers for n in a.accepted]
    by_depth = [sum(n > d for n in rounds) / max(1, len(rounds)) for d in range(depth)]
    return Drafts(temperature, len(rounds), by_depth)

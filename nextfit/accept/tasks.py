"""`nextfit accept --tasks`: every task, scored, with what the drafts were good for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from nextfit import __version__
from nextfit.accept import arithmetic, conversation, facts, retrieval, tools
from nextfit.accept.case import Lane
from nextfit.accept.run import Answer, ask
from nextfit.accept.score import drafts, scores
from nextfit.engine.params import SamplingParams
from nextfit.errors import ConfigError
from nextfit.llm import LLM

DRAFT = 4
WIDTH = 8  # conversations at once
SAMPLED = 0.6  # temperature of the second run
ROOM = 1024  # tokens beyond the longest text: questions, answers


@dataclass(frozen=True)
class Plan:
    """What is asked. `samples` texts of each length; other tasks have a fixed multiple of it."""

    seed: int = 1
    samples: int = 20
    lengths: tuple[int, ...] = (2048, 8192, 32768)

    def short(self, r: Random) -> list[Lane]:
        """The tasks whose prompts are short."""
        return [
            *arithmetic.lanes(r, 2 * self.samples),
            *conversation.recall(r, 5 * self.samples),
            *conversation.refusals(r, 2 * self.samples),
            *tools.calls(r, 5 * self.samples),
            *tools.results(r, 2 * self.samples),
            *facts.lanes(r, self.samples),
        ]

    def lanes(self, count: Callable[[str], int]) -> list[Lane]:
        """All of them; `count` gives a text's tokens."""
        r = Random(self.seed)
        return [*self.short(r), *retrieval.lanes(r, self.samples, self.lengths, count)]


def _load(model: Path | None, plan: Plan, dtype: str, progress: Callable[[int, int], None]) -> LLM:
    longest = max(plan.lengths, default=0)
    context = longest + ROOM if longest + ROOM > 4096 else 4096
    llm = LLM(
        model, context=None if longest >= 262144 - ROOM else context, draft=DRAFT, adaptive_draft=False,
        sequences=WIDTH,
        snapshots=64, dtype=dtype, progress=progress,
    )  # fmt: skip
    if llm.context < longest:
        raise ConfigError(
            f"a text of {longest} tokens was asked for, the model's context is {llm.context} (--lengths)"
        )
    return llm


def run(
    model: Path | None,
    plan: Plan,
    dtype: str,
    loading: Callable[[int, int], None],
    asked: Callable[[int, int], None],
) -> dict[str, Any]:
    """All scores as plain values. `asked` takes the cases done and in all."""
    llm = _load(model, plan, dtype, loading)
    lanes = plan.lanes(lambda text: len(llm.tokenizer.encode(text)))
    again = plan.short(Random(plan.seed))
    total, done = sum(map(len, lanes)) + len(again), 0

    def count(_: Answer) -> None:
        nonlocal done
        done += 1
        asked(done, total)

    start = time.perf_counter()
    answers = list(ask(llm, lanes, SamplingParams(temperature=0), WIDTH, count))
    seconds = time.perf_counter() - start
    sampled = list(ask(llm, again, SamplingParams(temperature=SAMPLED), WIDTH, count))
    found = scores(answers)
    short = [a for a in answers if not a.case.task.startswith(("retrieval", "absent"))]
    accepted = [drafts(0.0, DRAFT, short), drafts(SAMPLED, DRAFT, sampled)]
    return {
        "version": __version__, "model": str(model) if model else "the bundled model", "seed": plan.seed,
        "samples": plan.samples, "lengths": list(plan.lengths), "dtype": dtype, "seconds": seconds,
        "answer_tokens": sum(a.tokens for a in answers),
        "prompt_tokens": sum(a.prompt_tokens - a.cached_tokens for a in answers),
        "cached_tokens": sum(a.cached_tokens for a in answers),
        "tasks": [s.values() for s in found], "drafts": [d.values() for d in accepted],
        "passed": all(s.passed for s in found) and all(d.passed for d in accepted),
    }  # fmt: skip

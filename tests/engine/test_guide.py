"""A thought that has used up its budget ends with the real token, whatever was drafted."""

from __future__ import annotations

from typing import Any

import pytest

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from nextfit.errors import RequestError
from tests.support.scripted_model import ScriptedEngine, ScriptedModel, Wrong, never, wrong_at

END, CLOSE = 319, 300
PROMPT = [5] * 20
THOUGHT = [7 * i % 300 for i in range(60)]
CONTENT = [11, 12, 13]


def tokens(depth: int, wrong: Wrong, budget: int | None, **params: Any) -> list[int]:
    model = ScriptedModel(vocabulary=320, end=END, wrong=wrong)
    if budget is not None:
        model.learn(PROMPT, [*THOUGHT[:budget], CLOSE, *CONTENT])
    engine = ScriptedEngine(lambda prompt: THOUGHT, model=model, tokens_per_step=depth + 1)
    settings = SamplingParams(**{"temperature": 0, "thought_end": CLOSE, "thinking_budget": budget, **params})
    engine.add(Request("a", PROMPT, settings))
    found: list[int] = []
    while engine.has_work():
        for out in engine.step():
            found += [t.token for t in out.tokens]
    return found


@pytest.mark.parametrize("depth", [0, 3, 8])
@pytest.mark.parametrize("wrong", [never, wrong_at(1), wrong_at(2)])
def test_a3_the_close_token_is_forced(depth: int, wrong: Wrong) -> None:
    for budget in (0, 1, 7, 16, 17) if depth else (0, 16):
        assert tokens(depth, wrong, budget) == [*THOUGHT[:budget], CLOSE, *CONTENT]
        sampled = tokens(
            depth, wrong, budget, temperature=1.0, seed=budget, min_tokens=budget + 4, presence_penalty=1.0
        )
        assert sampled[: budget + 4] == [*THOUGHT[:budget], CLOSE, *CONTENT]


def test_without_a_budget_or_a_thought() -> None:
    assert tokens(4, never, None) == THOUGHT
    assert tokens(4, never, 3, max_tokens=3) == THOUGHT[:3]
    assert tokens(4, never, 16, thought_end=None) == THOUGHT


def test_refusals() -> None:
    for name, value in (("thinking_budget", -1), ("thinking_budget", 1.5), ("thought_end", 320)):
        with pytest.raises(RequestError, match=name):
            SamplingParams(**{name: value}).validate(320)  # type: ignore[arg-type]

"""The scripted model in the real engine: what it says comes out whatever the drafts do, and its state is one bank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Stats
from tests.support.scripted_model import (
    ScriptedEngine,
    ScriptedModel,
    Wrong,
    never,
    wrong_at,
    wrong_sometimes,
)

END = 319
SCRIPT = [(7 * i + i * i % 11) % 300 for i in range(60)]


def engine(wrong: Wrong = never, depth: int = 4, **limits: Any) -> ScriptedEngine:
    model = ScriptedModel(vocabulary=320, end=END, wrong=wrong)
    return ScriptedEngine(lambda prompt: SCRIPT, model=model, tokens_per_step=depth + 1, **limits)


def answer(e: ScriptedEngine, prompt: list[int], **params: object) -> tuple[list[list[int]], Output]:
    """The tokens of each step that gave any, and the last output."""
    e.add(Request("a", prompt, SamplingParams(**{"temperature": 0, **params})))  # type: ignore[arg-type]
    steps: list[list[int]] = []
    while True:
        for out in e.step():
            steps.append([t.token for t in out.tokens])
            if out.finish_reason:
                e.scheduler.check()
                return steps, out


@pytest.mark.parametrize("tps", [1, 4, 9, 64])
def test_tokens_per_step(tps: int) -> None:
    """The prompt gives the first token, every later step `tps`."""
    steps, last = answer(engine(depth=tps - 1), [1, 2, 3])
    assert [t for step in steps for t in step] == SCRIPT
    assert [len(s) for s in steps[:-1]] == [1, *[tps] * (len(steps) - 2)]
    assert (last.finish_reason, last.stop_token) == ("stop", END)


def alternating(depth: int, position: int) -> bool:
    return position % 2 == 0


def until(depth: int) -> Callable[[int, int], int]:
    return lambda k, n: min(k, depth - 1)


WAYS: dict[str, tuple[Wrong, Callable[[int, int], int]]] = {
    # drafts accepted of a round that drafts `k` tokens after `n` are known, by hand
    "right": (never, lambda k, n: k),
    **{f"wrong at {depth}": (wrong_at(depth), until(depth)) for depth in range(1, 9)},
    "alternating": (alternating, lambda k, n: min(k, n % 2)),
}


@pytest.mark.parametrize("depth", [1, 3, 4, 8])
@pytest.mark.parametrize("way", WAYS)
def test_drafts_right_and_wrong(way: str, depth: int) -> None:
    """The tokens are the script's, and as many drafts are accepted as are right."""
    wrong, accepted = WAYS[way]
    prompt = [5] * 20
    steps, last = answer(engine(wrong, depth), prompt, temperature=depth % 2, seed=1)
    assert [t for step in steps for t in step] == SCRIPT
    known, drafted, right = len(prompt) + 1, 0, 0
    for step in steps[1:]:
        count = accepted(depth, known)
        drafted += depth
        if known - len(prompt) + count >= len(SCRIPT):  # the end lies in this block: what it adds is the rest
            count = len(SCRIPT) - (known - len(prompt))
            right += count
            assert len(step) == count
            break
        right += count
        known += count + 1
        assert len(step) == count + 1
    assert last.stats == Stats(20, 60, 0, len(steps) - 1, drafted, right)


def test_one_bank_of_recurrent_state() -> None:
    """A slot for each sequence and snapshot and one that is nobody's, however deep the drafts are."""
    for depth in (0, 1, 8):
        e = engine(depth=depth, sequences=3, snapshots=2)
        assert len(e.state.committed) == e.state.shape.slots == 3 + 2 + 1
        assert e.state.shape.window == depth + 1


def test_wrong_state_is_noticed() -> None:
    """Each kind of state of another text: the slot, its log, the pages of the trunk and of the draft head."""

    def spoil_slot(e: ScriptedEngine) -> None:
        e.state.committed = [7] * len(e.state.committed)

    def spoil_log(e: ScriptedEngine) -> None:
        e.state.logged = [[t + 1 for t in log] for log in e.state.logged]

    def spoil_pages(e: ScriptedEngine) -> None:
        e.state.trunk.values = [7] * len(e.state.trunk.values)

    def spoil_draft(e: ScriptedEngine) -> None:
        e.state.draft.values = [7] * len(e.state.draft.values)

    for spoil, depth in ((spoil_slot, 0), (spoil_log, 4), (spoil_pages, 0), (spoil_draft, 4)):
        e = engine(depth=depth)
        e.add(Request("a", [1, 2, 3], SamplingParams(temperature=0)))
        for _ in range(3):
            e.step()
        spoil(e)
        with pytest.raises(AssertionError, match="disagree"):
            for _ in range(2):
                e.step()


def test_many_requests_at_once() -> None:
    """Different scripts, lengths, ways to draft and neighbours; each gets its own script."""
    scripts = {n: [(n * 31 + 7 * i) % 300 for i in range(20 + n)] for n in range(12)}
    model = ScriptedModel(vocabulary=320, end=END, wrong=wrong_sometimes(0.3))
    e = ScriptedEngine(
        lambda prompt: scripts[prompt[0]], model=model, tokens_per_step=4, sequences=5, prefill_chunk=7
    )
    for n in scripts:
        prompt = [n, *range(3 * n)]
        e.add(Request(str(n), prompt, SamplingParams(temperature=0, draft=n % 4)))
    found: dict[int, list[int]] = {n: [] for n in scripts}
    while e.has_work():
        for out in e.step():
            found[int(out.request_id)] += [t.token for t in out.tokens]
        e.scheduler.check()
    assert found == scripts
    total = e.totals()
    assert total.prompt_tokens == sum(1 + 3 * n for n in scripts)
    assert total.completion_tokens == sum(map(len, scripts.values()))
    assert total.drafted > total.accepted > 0 and total.rounds + total.accepted > total.completion_tokens - 12


def test_totals_count_requests_that_run_end_and_leave() -> None:
    e = engine(depth=4)
    for i in range(3):
        e.add(Request(str(i), [i, 1, 2], SamplingParams(temperature=0, max_tokens=(11, 60, 60)[i])))
    for _ in range(3):  # the prompt, then five tokens a step
        e.step()
    assert e.totals() == Stats(9, 33, 0, 6, 24, 24)
    e.cancel("1")
    e.step()
    assert e.totals() == Stats(9, 38, 0, 7, 28, 28)


def test_a_planted_failure() -> None:
    model = ScriptedModel(vocabulary=320, end=END, fail_at=3)
    with pytest.raises(RuntimeError, match="step 3"):
        answer(ScriptedEngine(lambda prompt: SCRIPT, model=model), [1])

"""The prefix cache, counted: how many rows are computed, and what requests are told about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request
from nextfit.llm import LLM
from nextfit.model import Buffers, Model, State
from nextfit.ops.batch import Batch
from tests.engine.drive import tiny_model

Rows = list[tuple[int, int]]  # (first position, count) of each prefill of a step


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Prefill rows that the trunk computes, as batches say."""
    found: Rows = []
    plain = Model.forward

    def forward(self: Model, batch: Batch, state: State, buffers: Buffers) -> Tensor:
        d = batch.decode_sequences
        found.extend(zip(batch.firsts[d:], batch.lengths[d:], strict=True))
        return plain(self, batch, state, buffers)

    monkeypatch.setattr(Model, "forward", forward)
    return found


def make(draft: int = 0, snapshots: int = 16, **limits: Any) -> Engine:
    values = dict(context=256, sequences=4, draft=draft, snapshots=snapshots) | limits
    return Engine(tiny_model(0), EngineConfig(**values), ())


def ask(
    e: Engine, prompts: Sequence[list[int]], max_tokens: int = 8, **params: object
) -> list[tuple[list[int], list[float], Output]]:
    """Tokens, their logprobs and the last output of requests that come together."""
    settings: dict = dict(max_tokens=max_tokens, temperature=1, seed=3, logprobs=0) | params
    found: dict[str, tuple[list[int], list[float]]] = {}
    last: dict[str, Output] = {}
    for i, prompt in enumerate(prompts):
        e.add(Request(str(i), prompt, SamplingParams(**settings)))
        found[str(i)] = [], []
    while e.has_work():
        for out in e.step():
            found[out.request_id][0].extend(t.token for t in out.tokens)
            found[out.request_id][1].extend(t.logprob or 0.0 for t in out.tokens)
            if out.finish_reason:
                last[out.request_id] = out
        e.scheduler.check()
    return [(*found[i], last[i]) for i in found]


def cached(out: Output) -> int:
    assert out.stats is not None
    return out.stats.cached_tokens


def ids(n: int, seed: int = 0) -> list[int]:
    return [(7 * i + i * i % 13 + 31 * seed) % 48 for i in range(n)]


@pytest.mark.parametrize("draft", [0, 4])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (ids(100), ids(100), 99),
        (ids(100), ids(100) + ids(30, 1), 99),
        (ids(17), ids(17), 16),
        (ids(16), ids(16), 15),
        (ids(5), ids(5), 4),
        (ids(4), ids(4), 3),
        (ids(100), ids(99), 98),
        (ids(100), ids(90), 0),  # a beginning without a snapshot of its own
    ],
)
def test_a_warm_request_computes_what_follows_the_snapshot(
    first: list[int], second: list[int], shared: int, page_size: int, draft: int, prefills: Rows
) -> None:
    """Exactly the prompt without the tokens of the snapshot, also with drafts; the first one computes all."""
    e = make(draft, page_size=page_size)
    (cold,) = ask(e, [first])
    assert sum(n for _, n in prefills) == len(first) and cached(cold[2]) == 0
    prefills.clear()
    (warm,) = ask(e, [second])
    position = shared // page_size * page_size
    assert prefills[0][0] == position and sum(n for _, n in prefills) == len(second) - position
    assert cached(warm[2]) == position


@pytest.mark.parametrize("draft", [0, 4])
def test_choices_that_come_together_share_one_prefill(draft: int, prefills: Rows) -> None:
    e = make(draft)
    answers = ask(e, [ids(100)] * 4)
    assert sum(n for _, n in prefills) == 100 + 3 * 4
    assert sorted(cached(last) for *_, last in answers) == [0, 96, 96, 96]


def test_a_conversation_resumes_behind_the_answer(prefills: Rows) -> None:
    e = make(4, answer_every=16)
    (first,) = ask(e, [ids(40)], max_tokens=45)
    prefills.clear()
    question = ids(40) + first[0] + ids(10, 2)
    (second,) = ask(e, [question])
    assert cached(second[2]) == 80 and sum(n for _, n in prefills) == len(question) - 80


def test_what_two_prompts_have_in_common_is_cached_for_the_third(prefills: Rows) -> None:
    """The second one leaves a snapshot where it parts from the first."""
    e, template = make(), ids(40)
    found = [cached(ask(e, [template + ids(60, seed)])[0][2]) for seed in (1, 2, 3, 4)]
    assert found == [0, 0, 32, 32]
    assert sum(n for _, n in prefills) == 4 * 100 - 2 * 32


def test_no_snapshots_no_cache(prefills: Rows) -> None:
    e = make(snapshots=0)
    assert [cached(ask(e, [ids(100)])[0][2]) for _ in range(2)] == [0, 0]
    assert sum(n for _, n in prefills) == 200


@pytest.mark.parametrize(("page_size", "every"), [(12, 50), (24, 64), (64, 20)])
def test_distances_are_made_whole_pages(page_size: int, every: int) -> None:
    e = make(page_size=page_size, snapshot_every=every, answer_every=every)
    prompt = ids(120)
    (first,) = ask(e, [prompt], max_tokens=80)
    step = -(-every // page_size) * page_size
    (again,) = ask(e, [prompt + first[0]])
    assert cached(again[2]) == 199 // step * step
    (part,) = ask(e, [prompt[: step + 1]])
    assert cached(part[2]) == step


@pytest.mark.parametrize("draft", [0, 4])
def test_a9_prompts_that_begin_alike(draft: int) -> None:
    """Long, repeated, extended and parting prompts, a short one, and one that shares only the template."""
    template = ids(36, 5)
    p, short = ids(3300), ids(40, 7)
    prompts = [p, p, p + ids(20, 1), p[:1700] + ids(300, 2), template + ids(30, 3), short]
    prompts += [template + ids(50, 4), short, template + ids(41, 6), p]
    limits = dict(context=4096, sequences=2, draft=draft)
    on, off = make(**limits), make(snapshots=0, **limits)
    found = []
    for prompt in prompts:
        ((tokens, logprobs, last),) = ask(on, [prompt], max_tokens=4)
        ((wanted, plain, cold),) = ask(off, [prompt], max_tokens=4)
        assert tokens == wanted and all(abs(a - b) < 1e-9 for a, b in zip(logprobs, plain, strict=True))
        assert last.stats is not None and cached(cold) == 0
        assert (last.stats.prompt_tokens, last.stats.completion_tokens) == (len(prompt), 4)
        found.append(cached(last))
    # 2048 is further than the 1700 common tokens; the last boundary before the end of 3,300 is 3,296
    assert found == [0, 3296, 3296, 0, 0, 0, 0, 32, 32, 3296]


def test_results_tell_what_was_cached() -> None:
    llm = LLM(context=512, sequences=2)
    prompt = [(11 * i) % 900 for i in range(200)]
    params = SamplingParams(max_tokens=4, temperature=0)
    first, second = (llm.generate(prompt_token_ids=[prompt], params=params)[0] for _ in range(2))
    assert (first.cached_tokens, second.cached_tokens) == (0, 192)
    assert first.token_ids == second.token_ids

"""Where an answer ends: end tokens, minimum and maximum, and the exact context limit."""

from __future__ import annotations

from typing import Any

import pytest

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Stats
from nextfit.errors import RequestError
from tests.engine.drive import running, tiny_model

PROMPT = [3, 1, 4, 1, 5]


def make(ends: tuple[int, ...] = (), draft: int = 3, context: int = 128, **limits: Any) -> Engine:
    config = EngineConfig(context=context, sequences=1, draft=draft, **limits)
    return Engine(tiny_model(0), config, ends)


def finish(e: Engine, prompt: list[int] = PROMPT, **params: object) -> tuple[list[int], list[float], Output]:
    """Tokens, their logprobs and the last output of one request."""
    settings: dict = dict(temperature=0, seed=1, logprobs=0) | params
    e.add(Request("a", prompt, SamplingParams(**settings)))
    tokens, logprobs = [], []
    while True:
        for out in e.step():
            tokens += [t.token for t in out.tokens]
            logprobs += [t.logprob or 0.0 for t in out.tokens]
            if out.finish_reason:
                assert not e.has_work()
                return tokens, logprobs, out


def plain() -> list[int]:
    """The answer that nothing stops; sampled, so that its tokens differ."""
    return finish(make(draft=0), max_tokens=40, temperature=1)[0]


def first_new(tokens: list[int], start: int) -> int:
    """Index of the first token from `start` on that did not come before."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize(
    "how", ["first end", "second end", "stop_token_ids", "ignore_eos with stop_token_ids"]
)
def test_end_tokens(how: str, start: int, draft: int) -> None:
    """The end token itself is no part of the answer."""
    answer = plain()
    at = first_new(answer, start)
    end, other = answer[at], next(t for t in range(48) if t not in answer)
    ends: tuple[int, ...] = {"first end": (end, other), "second end": (other, end)}.get(how, ())
    params: dict = {"temperature": 1, "max_tokens": 40}
    if "stop_token_ids" in how:
        params["stop_token_ids"] = (end,)
    if "ignore_eos" in how:
        ends, params["ignore_eos"] = (answer[0],) if at else (), True
    tokens, _, last = finish(make(ends, draft), **params)
    assert tokens == answer[:at] and (last.finish_reason, last.stop_token) == ("stop", end)
    assert last.stats is not None and last.stats.completion_tokens == at


def test_ignore_eos_goes_on() -> None:
    answer = plain()
    tokens, _, last = finish(make(tuple(answer[:3])), temperature=1, max_tokens=40, ignore_eos=True)
    assert tokens == answer and (last.finish_reason, last.stop_token) == ("length", None)


@pytest.mark.parametrize("minimum", [1, 2, 7])
def test_min_tokens(minimum: int) -> None:
    """End tokens cannot be chosen before, also inside a verified block; drafts change nothing."""
    answer = plain()
    ends = tuple(set(answer[:2]))
    outcomes = []
    for draft in (0, 1, 4):
        tokens, _, last = finish(make(ends, draft), temperature=1, max_tokens=40, min_tokens=minimum)
        assert len(tokens) >= minimum and not set(ends) & set(tokens)
        outcomes.append((tokens, last.finish_reason, last.stop_token))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert finish(make(ends), temperature=1, max_tokens=40)[0] == []


@pytest.mark.parametrize("drafts", [3, 2])
def test_a11_end_inside_a_verified_block(drafts: int) -> None:
    """A block [a, b, end, d], the end being a draft or the first token after the drafts."""
    answer = plain()
    at = first_new(answer, 3)
    e = make((answer[at],), draft=3)
    e.add(Request("a", PROMPT, SamplingParams(temperature=1, seed=1, max_tokens=40)))
    s, tokens = running(e, "a"), []
    while s.generated < at - 2:
        if s.decoding:
            s.drafts = []  # one token at a time up to here
        tokens += [t.token for out in e.step() for t in out.tokens]
    assert tokens == answer[: at - 2]
    before = s.accepted
    s.drafts = answer[at - 2 : at + 1][:drafts]
    (out,) = e.step()
    assert [t.token for t in out.tokens] == answer[at - 2 : at]
    assert (out.finish_reason, out.stop_token) == ("stop", answer[at])
    assert out.stats is not None and out.stats.completion_tokens == at
    assert out.stats.accepted - before == 2
    assert not e.has_work() and e.step() == []
    e.ends = frozenset()
    assert finish(e, temperature=1, max_tokens=40)[0] == answer  # the next one on that slot


CONTEXT = 256


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("maximum", [6, None])
def test_a12_exact_context_limit(maximum: int | None, page_size: int) -> None:
    """250 + 6 = 256 tokens fit, to the last one."""
    prompt = [(7 * i + 3) % 44 for i in range(250)]
    wanted = finish(make(draft=0, context=CONTEXT), prompt, max_tokens=6)
    e = make(draft=3, context=CONTEXT, page_size=page_size)
    tokens, logprobs, last = finish(e, prompt, max_tokens=maximum)
    assert len(tokens) == 6 and last.finish_reason == "length" and tokens == wanted[0]
    assert all(abs(a - b) < 1e-9 for a, b in zip(logprobs, wanted[1], strict=True))
    assert isinstance(last.stats, Stats) and (last.stats.prompt_tokens, last.stats.completion_tokens) == (
        250,
        6,
    )


@pytest.mark.parametrize("prompt", [255, 1])
def test_answer_of_one_token(prompt: int) -> None:
    tokens, _, last = finish(make(context=CONTEXT), [1] * prompt, max_tokens=1)
    assert len(tokens) == 1 and last.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "param", "named"),
    [
        ([1] * 250, {"max_tokens": 7}, "max_tokens", ["250", "7", "256"]),
        ([1] * 256, {}, "prompt", ["256"]),
        ([1] * 257, {"max_tokens": 1}, "prompt", ["257", "256"]),
        ([], {}, "prompt", ["empty"]),
        ([0, 48], {}, "prompt", ["48"]),
        ([-1], {}, "prompt", ["-1", "48"]),
        ([1], {"draft": 4}, "draft", ["4", "3"]),
        ([1], {"temperature": -1}, "temperature", ["-1"]),
        ([1], {"logit_bias": {48: 1.0}}, "logit_bias", ["48"]),
        ([1], {"stop_token_ids": (3, 48)}, "stop_token_ids", ["48"]),
    ],
)
def test_a12_refusals_change_nothing(prompt: list[int], params: dict, param: str, named: list[str]) -> None:
    e = make(context=CONTEXT)
    with pytest.raises(RequestError) as error:
        e.add(Request("a", prompt, SamplingParams(**params)))
    assert error.value.param == param and all(word in str(error.value) for word in named)
    assert not e.has_work() and e.step() == []
    assert finish(e, max_tokens=3)[2].finish_reason == "length"


def test_an_id_is_unique_while_it_runs() -> None:
    e = make()
    e.add(Request("a", PROMPT, SamplingParams(max_tokens=2)))
    with pytest.raises(RequestError, match="'a'"):
        e.add(Request("a", PROMPT, SamplingParams()))
    while e.has_work():
        e.step()
    assert len(finish(e, max_tokens=2)[0]) == 2


def test_cancel() -> None:
    e = make()
    for i in "abc":
        e.add(Request(i, PROMPT, SamplingParams(max_tokens=30)))
    e.step()
    e.cancel("a")
    e.cancel("c")
    e.cancel("nobody")
    outs = e.step()
    assert [(o.request_id, o.finish_reason) for o in outs[:2]] == [("a", "cancelled"), ("c", "cancelled")]
    e.cancel("b")
    assert e.has_work()
    assert [o.finish_reason for o in e.step()] == ["cancelled"] and not e.has_work()
    assert e.scheduler.slots.free == 1
    e.scheduler.cache.flush()
    assert e.scheduler.cache.pages.free == e.scheduler.cache.pages.capacity

"""Adaptive draft depth against simulated acceptance and cost, and that the tokens never notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from nextfit.engine.config import EngineConfig
from nextfit.engine.depth import Acceptance, DraftDepth, RoundCost
from nextfit.engine.engine import Engine
from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request
from tests.engine.drive import tiny_model

MOST = 8
Right = Callable[[int], float]  # chance that draft 1, 2, ... is right where those before it are


def rounds(
    right: Iterator[Right], each: float, seed: int, first: float = 0.0
) -> Iterator[tuple[int, float, int]]:
    """(tokens, seconds, depth) of each round of a request that is alone.

    A round costs 1 + `each` a draft + `first` if there are drafts, +- 10 %.
    """
    rng, choice, acceptance, depth = random.Random(seed), DraftDepth(), Acceptance(MOST), MOST
    for chance in right:
        accepted = 0
        while accepted < depth and rng.random() < chance(accepted + 1):
            accepted += 1
        acceptance.note(depth, accepted)
        following = choice.choose([(acceptance, MOST)])
        mean = (depth + following) / 2
        seconds = (1 + each * mean + first * ((depth > 0) + (following > 0)) / 2) * rng.lognormvariate(0, 0.1)
        choice.note(1, mean, seconds)
        yield accepted + 1, seconds, depth
        depth = following


def best(right: Right, each: float, first: float = 0.0) -> float:
    """Tokens a second of the best fixed depth."""
    speeds, tokens, reached = [1.0], 1.0, 1.0
    for depth in range(1, MOST + 1):
        reached *= right(depth)
        tokens += reached
        speeds.append(tokens / (1 + first + each * depth))
    return max(speeds)


def speed(found: list[tuple[int, float, int]]) -> float:
    return sum(t for t, *_ in found) / sum(s for _, s, _ in found)


def always(p: float, falling: float = 1.0) -> Right:
    return lambda depth: p * falling ** (depth - 1)


@pytest.mark.parametrize("each", [0.01, 0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("right", [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1])
@pytest.mark.parametrize("falling", [1.0, 0.9])
@pytest.mark.parametrize(("first", "at_once"), [(0.0, 0.9), (0.3, 0.85)])
def test_close_to_the_best_fixed_depth(
    right: float, each: float, falling: float, first: float, at_once: float
) -> None:
    """At least 95 % of its speed once the first rounds are over, and nearly that in the first 60."""
    chance = always(right, falling)
    early, later = list[tuple[int, float, int]](), list[tuple[int, float, int]]()
    for seed in range(4):
        found = list(rounds(iter([chance] * 600), each, seed, first))
        early, later = early + found[:60], later + found[150:]
    assert speed(later) > 0.95 * best(chance, each, first)
    assert speed(early) > at_once * best(chance, each, first)


@pytest.mark.parametrize(("before", "then"), [(0.1, 0.95), (0.95, 0.1), (0.0, 0.7)])
def test_follows_a_change(before: float, then: float) -> None:
    """After a hundred rounds of another text the speed is that of the text's own best depth, within a tenth."""
    found: list[tuple[int, float, int]] = []
    for seed in range(5):
        text = [always(before)] * 300 + [always(then)] * 300
        found += list(rounds(iter(text), 0.1, seed))[400:]
    assert speed(found) > 0.9 * best(always(then), 0.1)


def test_tries_again_where_drafts_do_not_pay() -> None:
    """Now and then: about every tenth round."""
    depths = [depth for *_, depth in rounds(iter([always(0)] * 1000), 0.2, 0)][200:]
    tried = [i for i, depth in enumerate(depths) if depth]
    assert max(b - a for a, b in zip(tried, tried[1:], strict=False)) < 64 and len(tried) < 0.15 * len(depths)


def test_a_round_that_was_held_up_says_little() -> None:
    cost = RoundCost()
    for i in range(100):
        cost.note(i % 5, 1 + 0.1 * (i % 5))
    assert cost.curve() == pytest.approx((1, 0, 0.1), abs=0.01)
    cost.note(4, 1000.0)
    assert sum(cost.curve()) < 1.25


def test_fits_are_apart_by_the_number_of_sequences() -> None:
    choice, certain = DraftDepth(), Acceptance(MOST)
    for i in range(50):
        depth = i % 3
        choice.note(1, depth, 1 + 0.01 * depth)
        choice.note(8, depth, 1 + 2.0 * depth)
        certain.note(MOST, MOST)
    assert choice.choose([(certain, MOST)]) == MOST
    assert choice.choose([(certain, MOST)] * 8) == 0
    assert choice.choose([(certain, 3)]) == 3


PROMPT = [3, 1, 4, 1, 5]


def run(clock: Callable[[], float], adaptive: bool) -> tuple[list[list[int]], list[int], Engine]:
    """Tokens of three requests, and the drafts of the first in each round."""
    config = EngineConfig(context=128, sequences=3, draft=8, adaptive_draft=adaptive)
    e = Engine(tiny_model(0), config, (), clock)
    for i in range(3):
        params = SamplingParams(temperature=i, seed=i, max_tokens=14, ignore_eos=True, draft=(8, 5, 0)[i])
        e.add(Request(str(i), PROMPT, params))
    tokens: list[list[int]] = [[], [], []]
    depths = []
    while e.has_work():
        first = e._sequences.get("0")
        if first is not None and first.decoding:
            depths.append(len(first.drafts))
        for s in e._sequences.values():
            assert len(s.drafts) <= min(s.draft_depth, s.draft_room())
        for out in e.step():
            tokens[int(out.request_id)] += [t.token for t in out.tokens]
    return tokens, depths, e


def test_tokens_do_not_depend_on_the_clock() -> None:
    wanted, fixed, _ = run(lambda: 0.0, adaptive=False)
    assert set(fixed[:-8]) == {8}
    rng, now = random.Random(0), [0.0]

    def clock() -> float:
        now[0] += rng.choice([0.0, 1e-6, rng.lognormvariate(0, 2)])
        return now[0]

    tokens, depths, _ = run(clock, adaptive=True)
    assert tokens == wanted
    assert len(set(depths)) > 2, depths

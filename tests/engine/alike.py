"""Requests that begin alike, in every way that a prefix cache has to tell apart."""

from __future__ import annotations

import random
from collections.abc import Callable

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Request

_SPECS: list[tuple[str, int, int]] = [  # kind, tokens of the family's text, tokens of its own after them
    ("first", 50, 0),
    ("again", 50, 0),
    ("again", 50, 0),
    ("longer", 50, 13),
    *(("parted", n, 67 - n) for n in (15, 16, 17, 31, 32, 33, 47, 48, 49, 60, 64)),
    *(("short", n, 0) for n in (1, 4, 5, 8, 9, 16, 17)),
    *(("header", n, 30) for n in (20, 20, 21, 36)),
    *(("choice", 44, 0) for _ in range(3)),
    ("talk", 30, 0),
]
FAMILIES = 2  # one for each model: fewer answers to compute
FIRST = 300
ALIKE = range(FIRST, FIRST + len(_SPECS) * FAMILIES)
_TURN = ALIKE.stop
TALK_TOKENS = 22


def kind(number: int) -> str:
    return "turn" if number >= _TURN else _SPECS[(number - FIRST) // FAMILIES][0]


def family(number: int) -> int:
    return (number - FIRST) % FAMILIES


def of_kind(wanted: str, of_family: int) -> list[int]:
    """The requests of a kind in one family."""
    return [n for n in ALIKE if kind(n) == wanted and family(n) == of_family]


def turn(of_family: int, count: int) -> int:
    """The number of the question that comes `count` (1, 2, ...) answers after a talk began."""
    return _TURN + (count - 1) * FAMILIES + of_family


def is_alike(number: int) -> bool:
    return number >= FIRST


def alike(number: int, answer: Callable[[int, int], list[int]]) -> Request:
    """Request `number`; `answer` gives the tokens that the model of its family answers to another request."""
    rng = random.Random(f"alike {number}")
    own = [rng.randrange(48) for _ in range(60)]
    params = SamplingParams(
        max_tokens=rng.choice([3, 6, 14]),
        temperature=rng.choice([0, 1, 1.5]),
        frequency_penalty=rng.choice([0, 0, 0.5]),
        seed=number,
        logprobs=1,
        ignore_eos=rng.random() < 0.8,
    )
    if number >= _TURN:
        count, of_family = divmod(number - _TURN, FAMILIES)
        last = turn(of_family, count) if count else of_kind("talk", of_family)[0]
        prompt = alike(last, answer).prompt + answer(of_family, last) + own[:5]
        return Request(str(number), prompt, _talk(number, 14))
    name, shared, tail = _SPECS[(number - FIRST) // FAMILIES]
    source = random.Random(f"family {family(number)}")
    text = [source.randrange(48) for _ in range(64)]
    if name == "talk":
        params = _talk(number, TALK_TOKENS)
    if name == "choice":
        which = of_kind("choice", family(number)).index(number)
        params = SamplingParams(max_tokens=10, temperature=1, seed=7, choice=which, logprobs=1)
    return Request(str(number), text[:shared] + own[:tail], params)


def _talk(number: int, tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1, seed=number, logprobs=1, ignore_eos=True)

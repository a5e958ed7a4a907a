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
FAMILY = 1000  # request numbers of one family, which is asked of the model of the same number
FIRST = 300  # in each family
_TURN = FIRST + len(_SPECS)
TALK_TOKENS = 22


def kind(number: int) -> str:
    """What a request is to its family; "other" if it is not of one."""
    own = number % FAMILY
    return "other" if own < FIRST else "turn" if own >= _TURN else _SPECS[own - FIRST][0]


def everybody(family: int) -> list[int]:
    """The requests of a family, without the turns of its talk."""
    return list(range(family * FAMILY + FIRST, family * FAMILY + _TURN))


def of_kind(wanted: str, family: int) -> list[int]:
    """The requests of a kind in one family."""
    return [n for n in everybody(family) if kind(n) == wanted]


def turn(family: int, count: int) -> int:
    """The number of the question that comes `count` (1, 2, ...) answers after a talk began."""
    return family * FAMILY + _TURN + count - 1


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
    family = number // FAMILY
    if kind(number) == "turn":
        last = number - 1 if kind(number - 1) == "turn" else of_kind("talk", family)[0]
        prompt = alike(last, answer).prompt + answer(family, last) + own[:5]
        return Request(str(number), prompt, _talk(number, 14))
    name, shared, tail = _SPECS[number % FAMILY - FIRST]
    source = random.Random(f"family {family}")
    text = [source.randrange(48) for _ in range(64)]
    if name == "talk":
        params = _talk(number, TALK_TOKENS)
    if name == "choice":
        which = of_kind("choice", family).index(number)
        params = SamplingParams(max_tokens=10, temperature=1, seed=7, choice=which, logprobs=1)
    return Request(str(number), text[:shared] + own[:tail], params)


def _talk(number: int, tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1, seed=number, logprobs=1, ignore_eos=True)

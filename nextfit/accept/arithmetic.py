"""Sums and differences of up to four digits, thought through before they are answered."""

from __future__ import annotations

import re
from random import Random

from nextfit.accept.case import Case, Lane, user
from nextfit.accept.words import GIVEN, GOODS
from nextfit.text.events import Reply

_SUM = (
    "Suppose you tally {a} and {b}. Where does that land?",
    "The crew loaded {a} {x} at first and {b} afterwards. What is the load now?",
    "Combine {a} with {b} and report the figure.",
    "{n} collected {a} {x}; later another {b} were donated. What does the collection amount to?",
    "Beginning at {a}, climb by {b}. Which number have you reached?",
    "What does {a} + {b} come to?",
    "When {a} joins {b}, what is the grand total?",
    "Two crates hold {a} and {b} {x}. How many {x} is that between them?",
)
_DIFFERENCE = (
    "Beginning at {a}, go down by {b}. Which number have you reached?",
    "A barrel held {a} {x} until {b} rolled out. How many does it still hold?",
    "What does {a} - {b} come to?",
    "Knock {b} off {a} and report the figure.",
    "{n} owed {a} coins and paid back {b}. What is still owed?",
    "Out of {a} seats {b} are occupied. How many stay vacant?",
    "From a roll of {a} metres, {b} metres were cut. How long is the rest?",
    "By what amount does {a} exceed {b}?",
)
_NUMBER = re.compile(r"-?\d+")


def _says(result: int, reply: Reply) -> bool:
    found = _NUMBER.findall(reply.content.replace(",", ""))
    return bool(found) and int(found[-1]) == result


def lanes(r: Random, count: int) -> list[Lane]:
    """`count` of each number of digits from 1 to 4."""
    found = []
    for digits in range(1, 5):
        for i in range(count):
            a, b = (r.randrange(10 ** (digits - 1) - (digits == 1), 10**digits) for _ in range(2))
            if i % 2:
                a, b = max(a, b), min(a, b)
            text, result = (r.choice(_DIFFERENCE), a - b) if i % 2 else (r.choice(_SUM), a + b)
            text = text.format(a=a, b=b, x=r.choice(GOODS), n=r.choice(GIVEN))
            right = lambda reply, result=result: _says(result, reply)  # noqa: E731
            found.append([Case("arithmetic", f"{digits} digits", (user(text),), str(result), right)])
    return found

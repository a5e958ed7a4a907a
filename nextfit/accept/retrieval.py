"""One fact among others of the same form, at every depth of a long text; and facts that a text does not hold."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from nextfit.accept import words
from nextfit.accept.case import Case, Lane, user
from nextfit.text.events import Reply

DEPTHS = (0, 25, 50, 75, 100)  # percent of the text before the fact
DISTRACTORS = 3  # facts of the same form that are never asked for
_STATED = (
    "According to the register, {k} was issued {v} as {x}.",
    "In the ledger, the {x} entered for {k} reads {v}.",
    "Whoever needs the {x} of {k} should write down {v}.",
    "The clerk confirmed that {v} is now the {x} held by {k}.",
)
_ASKED = (
    "Going by the text, what is the {x} of {k}?",
    "Which {x} was {k} issued?",
    "Could you dig out the {x} that goes with {k}?",
    "What {x} does the text report for {k}?",
)
_START = "Below are excerpts from an archive. Afterwards there is a question about them.\n\n"
_LEAVE = 160  # tokens for the question, the template and the answer's beginning


def _names(value: str, others: list[str], reply: Reply) -> bool:
    return value in reply.content and not any(o in reply.content for o in others if o not in value)


def _unknown(reply: Reply) -> bool:
    return "not say" in reply.content or "not know" in reply.content


def document(r: Random, length: int, count: Callable[[str], int]) -> tuple[str, Lane]:
    """A text of at most `length` tokens by `count`, and one case for every depth, and one that has no answer."""
    n = len(DEPTHS) + DISTRACTORS
    owners, values = words.distinct(r, words.full_name, n + 1), words.distinct(r, words.code, n)
    x, pattern = r.choice(words.THINGS), r.choice(_STATED)
    facts = [pattern.format(k=k, v=v, x=x) for k, v in zip(owners, values, strict=False)]
    filler: list[str] = []
    left = length - _LEAVE - count(_START + " ".join(facts))
    while left > 0:
        filler.append(words.sentence(r))
        left -= count(" " + filler[-1])
    filler = filler[:-1]
    places = [(d * len(filler) // 100, fact) for d, fact in zip(DEPTHS, facts, strict=False)]
    places += [(r.randint(0, len(filler)), fact) for fact in facts[len(DEPTHS) :]]
    for at, fact in sorted(places, reverse=True):
        filler.insert(at, fact)
    text = _START + " ".join(filler)

    def case(task: str, group: str, owner: str, expected: str, right: Callable[[Reply], bool]) -> Case:
        question = r.choice(_ASKED).format(x=x, k=owner)
        return Case(task, group, (user(f"{text}\n\n{question}"),), expected, right)

    lane = []
    for d, owner, value in zip(DEPTHS, owners, values, strict=False):
        others = [v for v in values if v != value]
        right = lambda reply, value=value, others=others: _names(value, others, reply)  # noqa: E731
        lane.append(case(f"retrieval at {length} tokens", f"depth {d} %", owner, value, right))
    lane.append(case("absent fact", f"{length} tokens", owners[-1], "that it is not there", _unknown))
    return text, lane


def lanes(r: Random, documents: int, lengths: tuple[int, ...], count: Callable[[str], int]) -> list[Lane]:
    return [document(r, length, count)[1] for length in lengths for _ in range(documents)]

"""Things that the user says and asks for some turns later; and what a small model cannot know."""

from __future__ import annotations

from random import Random

from nextfit.accept import words
from nextfit.accept.case import Case, Lane, user
from nextfit.text.events import Reply

# what the user says of {v}, and how it is asked for
_TOLD = (
    ("Everyone at the office knows me as {v}.", "By which name am I known at the office?", "name"),
    ("These days you will find me living in {v}.", "In which place would you find me living these days?", "place"),
    ("Write down that my {x} shall be {v}.", "Which {x} did I ask you to write down?", "code"),
    ("My {x} has just been changed to {v}.", "To what has my {x} been changed?", "code"),
    ("The parrot that sits on my shoulder answers to {v}.", "To which name does my parrot answer?", "name"),
    ("I picked {v} for my {x}.", "What did I pick for my {x}?", "code"),
    ("My closest colleague is {v}.", "Who is my closest colleague?", "full name"),
    ("I am travelling to {v} soon.", "Where am I travelling to soon?", "place"),
)  # fmt: skip
_BETWEEN = (
    "Lovely weather here.",
    "One moment, somebody is at the door.",
    "What does 8 + 5 come to?",
    "Right, where was I?",
    "Hi again!",
)
_UNKNOWABLE = (
    "Who composed the anthem of {p}?", "How many bridges cross the river at {p}?", "What did {n} have for supper?", "Which dentist treats {n}?",
    "How high is the cathedral of {p}?", "Who won the regatta in {y}?", "In what year did {n} retire?", "How do you bake a {w} tart?",
    "What is the phone number of the town hall in {p}?", "Which poem did {n} publish in {y}?",
)  # fmt: skip


def _value(r: Random, kind: str) -> str:
    if kind == "code":
        return words.code(r)
    if kind == "full name":
        return words.full_name(r)
    return r.choice(words.GIVEN if kind == "name" else words.PLACES)


def _refuses(reply: Reply) -> bool:
    return "not know" in reply.content or "not say" in reply.content


def recall(r: Random, count: int) -> list[Lane]:
    """One of one to three things is asked for, after up to two turns about something else."""
    found = []
    for _ in range(count):
        told = r.sample(_TOLD, r.randint(1, 3))
        turns, answers = [], []
        for statement, question, kind in told:
            x, v = r.choice(words.THINGS), _value(r, kind)
            turns.append(statement.format(v=v, x=x))
            answers.append((question.format(x=x), v))
        between = r.randint(0, 2)
        turns += r.sample(_BETWEEN, between)
        question, value = r.choice(answers)
        right = lambda reply, value=value: value in reply.content  # noqa: E731
        group = f"{len(told)} told, {between} turns between"
        found.append([Case("recall", group, (*map(user, turns), user(question)), value, right)])
    return found


def refusals(r: Random, count: int) -> list[Lane]:
    found = []
    for _ in range(count):
        text = r.choice(_UNKNOWABLE).format(
            p=r.choice(words.PLACES), n=words.full_name(r), y=r.randrange(1850, 2020), w=r.choice(words.WORDS)
        )
        found.append([Case("refusal to guess", "all", (user(text),), "that it does not know", _refuses)])
    return found

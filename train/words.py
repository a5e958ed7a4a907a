"""Words, names and sentences that the tasks are made of. Evaluation has its own and never imports these."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_FIRST = (
    "ba be bo ca ce da de di do fa fe ga go ha he hi jo ka ke ki la le li lo ma me mi mo na ne ni no".split()
)
_MIDDLE = "r l n m s t v d ri la no mi ve ra li ne so ta".split()
_LAST = "n s a o ra na la m th ck ll rt nd va ko ss na ri to x".split()
ADJECTIVES = (
    "old new red blue green grey quiet loud small large narrow wide early late cold warm heavy light broken "
    "clean dusty empty full famous foreign gentle hidden honest lazy lonely modern noisy patient pale plain"
).split()
NOUNS = (
    "bridge garden harbour kitchen letter lamp market mirror mountain orchard painting piano river school ship "
    "station street table tower train valley village window winter workshop bakery boat book box castle clock "
    "door engine farm field ferry forest fountain gate hill hotel island key ladder library map mill museum"
).split()
PEOPLE = (
    "baker captain carpenter clerk cook doctor driver farmer gardener judge mechanic miller nurse painter pilot "
    "poet sailor singer student tailor teacher watchmaker writer mayor fisher guard hunter librarian"
).split()
VERBS = (
    "watched repaired painted sold found lost counted described forgot opened closed visited moved cleaned drew "
    "measured photographed remembered borrowed returned carried hid noticed avoided admired crossed left reached"
).split()
TIMES = (
    "in the morning|before noon|after lunch|in the evening|at night|last week|a year ago|on Monday|on Friday|"
    "during the storm|in spring|every summer|twice a month|without a word|for the first time|once more|by accident"
).split("|")
PLACES = (
    "Oslo Lima Cairo Turin Quito Perth Leeds Kyoto Dakar Malmo Porto Bern Lagos Austin Delhi Seoul Hanoi Riga "
    "Tunis Accra Havana Zagreb Dublin Geneva Naples Seville Athens Boston Denver Nairobi Prague Vienna"
).split()
FRUITS = "apples pears plums cherries lemons grapes figs melons peaches olives nuts berries".split()
ANIMALS = "dog cat horse parrot rabbit goat donkey turtle hamster canary sheep pony".split()
COLOURS = "red blue green yellow white black orange purple brown silver".split()


def name(r: Random) -> str:
    """An invented name of two or three syllables, at times any letters."""
    if r.random() < 0.4:
        pairs = [r.choice("bcdfghjklmnprstvwxyz") + r.choice("aeiouy") for _ in range(r.randint(1, 3))]
        return (
            "".join(pairs)
            + r.choice(("", "n", "r", "s", "l", "t", "m", "d", "ng", "sh", "ch", "ff", "b", "g", "z"))
        ).title()
    return (
        r.choice(_FIRST) + r.choice(_MIDDLE) * (r.random() < 0.6) + r.choice(_FIRST) + r.choice(_LAST)
    ).title()


def full_name(r: Random) -> str:
    return f"{name(r)} {name(r)}"


def word(r: Random) -> str:
    """An invented lower-case word."""
    return "".join(r.choice(_FIRST) for _ in range(r.randint(1, 3))) + r.choice(_LAST)


def number(r: Random, digits: int) -> str:
    return str(r.randrange(10 ** (digits - 1), 10**digits))


def code(r: Random) -> str:
    """Digits, letters and digits, or a word and digits."""
    kind = r.randrange(4)
    if kind == 0:
        return number(r, r.randint(3, 7))
    if kind == 1:
        return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(r.randint(1, 3))) + number(r, 3)
    if kind == 2:
        return f"{word(r)}-{number(r, 2)}"
    return f"{word(r)} {r.choice(NOUNS)}"


def sentence(r: Random) -> str:
    """A sentence that hardly ever comes twice."""
    kind = r.randrange(8)
    a, b = r.choice(ADJECTIVES), r.choice(ADJECTIVES)
    n, m, p, v = r.choice(NOUNS), r.choice(NOUNS), r.choice(PEOPLE), r.choice(VERBS)
    t, who = r.choice(TIMES), name(r)
    if kind == 0:
        return f"The {a} {p} {v} the {n} {t}."
    if kind == 1:
        return f"{who} {v} a {a} {n} near the {m}, and nobody in {r.choice(PLACES)} knew why."
    if kind == 2:
        return f"{t[0].upper() + t[1:]}, the {n} was {a} and the {m} was {b}."
    if kind == 3:
        return f"There were {r.randint(2, 90)} {r.choice(FRUITS)} in the {a} {n} of {who}."
    if kind == 4:
        return f"A {p} from {r.choice(PLACES)} {v} the {a} {n}; {who} {r.choice(VERBS)} it {t}."
    if kind == 5:
        return f"Nobody {v} the {m} until {who}, the {p}, {r.choice(VERBS)} it."
    if kind == 6:
        return f"In {r.choice(PLACES)} the {p}s say that a {a} {n} is worth {r.randint(2, 99)} {m}s."
    return f'"Where is the {a} {n}?" asked {who}, and the {p} {v} the {m}.'


def filler(r: Random, count: int) -> list[str]:
    return [sentence(r) for _ in range(count)]


def pick(r: Random, lines: Sequence[str], **values: str) -> str:
    return r.choice(lines).format(**values)

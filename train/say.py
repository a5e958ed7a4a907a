"""Sentences from patterns: `[one|two {x}]` is a choice, `{x}` a value."""

from __future__ import annotations

from functools import cache
from random import Random


@cache
def _parse(pattern: str) -> tuple:
    sequence, rest = _sequence(pattern, 0, outer=True)
    assert rest == len(pattern), pattern
    return sequence


def _sequence(pattern: str, i: int, outer: bool) -> tuple[tuple, int]:
    """A run of texts (str) and choices (tuples of runs) up to `|`, `]` or the end."""
    nodes: list = []
    text = ""
    while i < len(pattern) and (outer or pattern[i] not in "|]"):
        if pattern[i] != "[":
            text, i = text + pattern[i], i + 1
            continue
        nodes.append(text)
        text, choices = "", []
        while pattern[i] != "]":
            run, i = _sequence(pattern, i + 1, outer=False)
            choices.append(run)
        nodes.append(tuple(choices))
        i += 1
    return (*nodes, text), i


def _draw(r: Random, sequence: tuple) -> str:
    return "".join(n if isinstance(n, str) else _draw(r, n[int(r.random() * len(n))]) for n in sequence)


def say(r: Random, pattern: str, **values: str) -> str:
    """One sentence of the pattern, its first letter large unless it is the value's, `{v}`."""
    drawn = _draw(r, _parse(pattern))
    line = drawn.format(**values)
    return line if drawn.startswith("{v}") else line[:1].upper() + line[1:]


def say_one(r: Random, patterns: tuple[str, ...], **values: str) -> str:
    return say(r, patterns[int(r.random() * len(patterns))], **values)


_BEFORE = (
    "[|||||||||please: |hello! |hi, |ok, |now |a question: |next question: |so, |and |tell me: |quick question: "
    "|one more: |could you help? |I wonder: ]"
)
_AFTER = "[||||||||| please.| thanks.| thank you.| Answer briefly.| I need it now.| Can you tell me?]"


def asked(r: Random, line: str) -> str:
    """As people type: with words around it, or careless about large letters and full stops."""
    kind = r.random()
    if kind < 0.3:
        before = _draw(r, _parse(_BEFORE))
        line = before + line if before else line
        line += _draw(r, _parse(_AFTER))
        return line[:1].upper() + line[1:]
    if kind < 0.4:
        return line[:1].lower() + line[1:]
    if kind < 0.5:
        return line.rstrip("?.")
    return line

"""One row: its request in the state of affairs that the row asks for, against the same request alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.server.matrix.answers import Answer, Choice, read
from tests.server.matrix.columns import PATHS, request, unlike
from tests.server.matrix.engines import CHUNK, Caller, Engines, Seen, Watched
from tests.server.scripted import wait_for
from tests.support.pairwise import Row

UNSAID = "%%%"  # a stop string that no answer has
SETTLE = 0.05  # seconds for what the engine has said to reach the client
ON = {"max_tokens": 900, "ignore_eos": True}
NEIGHBOURS: list[dict[str, Any]] = [
    {"prompt": [40, 50, 60] * 7, "temperature": 0, **ON},
    {
        "prompt": [70, 80, 90, 95] * 4,
        "temperature": 0.8,
        "seed": 3,
        "top_p": 0.95,
        **ON,
    },  # as a seeded row has them
    {"prompt": [65] * 20, "temperature": 0.7, "seed": 4, "repetition_penalty": 1.2, "logprobs": 1, **ON},
    {"prompt": [300] * 9, "temperature": 1, "seed": 5, "regex": "([a-z]{3} ){300}", **ON},
]
COMPARED = 24  # tokens of a neighbour's answer


def check(engines: Engines, row: Row, seen: Counter[str]) -> None:
    """Run `row`; AssertionError if anything differs. What happened is counted in `seen`."""
    api, path = row["api"], PATHS[str(row["api"])]
    stop = _stop(engines, row) if row["stop"] == "on" else None
    body = request(row, stop)
    wanted = read(api, engines.solo(path, body), streamed=False)
    place = int(row["drafts"]), str(row["prefill"])
    if not row["drafts"] and api in ("chat", "completions"):
        body["draft"], place = 0, (4, place[1])
    url, engine = engines.urls[place], engines.watched[place]
    engine.idle()
    if row["leaves"] != "never":
        _prepare(url, row, body)
        with _neighbours(engines, url, engine, int(row["neighbours"])):
            _leave(url, engine, row, body, wanted)
        engine.idle()
        seen["left"] += 1
    _prepare(url, row, body)
    with _neighbours(engines, url, engine, int(row["neighbours"])):
        before = set(engine.seen)
        found = read(api, Caller(url, path, body).answer(), row["stream"] == "streamed")
        assert found.alike(wanted), f"{row}\n{found}\ninstead of\n{wanted}"
        happened(row, found, [s for id, s in engine.seen.items() if id not in before], seen)
    engine.idle()


def _prepare(url: str, row: Row, body: dict[str, Any]) -> None:
    """Leave in the prefix cache what the row finds there: nothing, or the beginning of its prompt."""
    httpx.post(f"{url}/flush_cache").raise_for_status()
    if row["prefix"] == "hit":
        for word in ("boats ", "storms "):  # the state of where they part is kept
            Caller(url, PATHS[str(row["api"])], unlike(body, word)).answer()


def _stop(engines: Engines, row: Row) -> str:
    """A piece of what the answer would be: there it has to end. Of a call or a thought, if that is all: not there."""
    whole = engines.solo(PATHS[str(row["api"])], request(row, UNSAID))
    choice = read(row["api"], whole, streamed=False).choices[0]
    text = choice.text or "".join(arguments for _, arguments in choice.calls) or choice.thought
    assert len(text) > 4, choice
    middle = len(text) // 2
    return text[middle : middle + 4]


@contextmanager
def _neighbours(engines: Engines, url: str, engine: Watched, count: int) -> Iterator[None]:
    """Others that decode meanwhile; each says what it says alone."""
    path = PATHS["completions"]
    before = set(engine.seen)
    callers = [Caller(url, path, {**body, "stream": True}) for body in NEIGHBOURS[:count]]
    wait_for(lambda: sum(s.sequence.decoding for i, s in engine.seen.items() if i not in before) == count)
    engine.neighbours = frozenset(engine.seen) - before
    try:
        yield
        assert all(caller.is_alive() for caller in callers), "a neighbour ended too soon"
    finally:
        said = [caller.leave() for caller in callers]
        engine.neighbours = frozenset()
    for body, text in zip(NEIGHBOURS, said, strict=False):
        alone = read("completions", engines.solo(path, {**body, "max_tokens": COMPARED}), streamed=False)
        mine, theirs = read("completions", text, streamed=True).choices[0].text, alone.choices[0].text
        length = min(len(mine), len(theirs))
        assert length and mine[:length] == theirs[:length], (mine, theirs)


def _leave(url: str, engine: Watched, row: Row, body: dict[str, Any], wanted: Answer) -> None:
    """Go away when the engine has come so far; it stops at once, and what was said until then was right."""
    before = set(engine.seen)
    engine.hold(str(row["leaves"]), int(row["n"]))
    caller = Caller(url, PATHS[str(row["api"])], body)
    assert engine.held.wait(20), "the engine did not come so far"
    time.sleep(SETTLE)
    said = caller.leave()
    engine.go()
    own = [s for id, s in engine.seen.items() if id not in before]
    assert len(own) == row["n"]
    wait_for(lambda: any(s.cancelled for s in own))
    wait_for(lambda: all(s.sequence.finish is not None for s in own))
    if row["stream"] == "streamed":
        found = read(row["api"], said, streamed=True)
        assert all(a.begins(b) for a, b in zip(found.choices, wanted.choices, strict=False))
        assert row["leaves"] == "before a token" or any(_says(c) for c in found.choices), said
    else:
        assert not said


def _says(choice: Choice) -> bool:
    return bool(choice.thought or choice.text or choice.calls)


def happened(row: Row, found: Answer, own: list[Seen], seen: Counter[str]) -> None:
    """What the row is about did happen."""
    assert len(own) == row["n"] == len(found.choices)
    assert bool(found.cached) == (row["prefix"] == "hit"), found.cached
    pieces = own[0].pieces
    if row["prefill"] == "chunked":
        assert len(pieces) > 2 and max(pieces) <= CHUNK, pieces
    else:  # the last page may be apart, since the state before it is kept
        assert len(pieces) <= 2 and max(pieces) > CHUNK, pieces
    company = [s.company for s in own if s.company != 99]
    assert all(c >= int(row["neighbours"]) for c in company) and company
    drafted = sum(s.sequence.drafted for s in own)
    assert bool(drafted) == bool(row["drafts"])
    seen["drafts accepted"] += sum(s.sequence.accepted for s in own)
    seen["drafts rejected"] += drafted - sum(s.sequence.accepted for s in own)
    for choice in found.choices:
        seen["probabilities"] += len(choice.probabilities)
        assert bool(choice.probabilities) == (row["logprobs"] == "on")
        seen["stopped"] += row["stop"] == "on" and choice.reason in ("stop", f"stop_sequence {choice.text}")
        seen["called"] += bool(choice.calls)
        seen["thought"] += bool(choice.thought)
        assert bool(choice.thought) == (row["thinking"] != "off"), choice
        assert choice.calls or row["tools"] != "required" or _cut(choice)
        seen[f"ended by {choice.reason}"] += 1


def _cut(choice: Choice) -> bool:
    return bool(choice.reason and ("length" in choice.reason or "max" in choice.reason))

"""That no way of cutting a text into pieces changes what is read.

There are 2^(n-1) ways, and all are covered by n^2 checks: let S(i) be the reader's state and its events after the
first i characters, one at a time. If reading text[i:j] at once leads from S(i) to S(j), for every i < j, then by
induction every sequence of pieces leads to S(n).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from nextfit.text.events import Event, append
from nextfit.text.markup import MarkupReader
from nextfit.text.tools import Tools
from tests.text.transcripts import NO_TOOLS, TOOLS, Transcript

Events = list[Event]


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> bool | None:
        return thing is TOOLS if isinstance(thing, Tools) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: bool) -> Tools:
        return TOOLS if pid else NO_TOOLS


def every_split(transcript: Transcript) -> None:
    text, reader = transcript.text, transcript.reader()
    events: Events = []
    saved, states = [], []
    for character in [*text, None]:
        file = io.BytesIO()
        _Pickler(file).dump((reader, events))
        saved.append(file.getvalue())
        states.append(_canonical((reader, events)))
        if character is not None:
            _push(reader, events, character)
    for i, data in enumerate(saved):
        for j in range(i + 1, len(text) + 1):
            copy, seen = _Unpickler(io.BytesIO(data)).load()
            _push(copy, seen, text[i:j])
            assert _canonical((copy, seen)) == states[j], (transcript.name, text[:i], text[i:j])
    for event in reader.finish("cut" in transcript.options):
        append(events, event)
    assert events == transcript.events


def _push(reader: MarkupReader, events: Events, text: str) -> None:
    for event in reader.push(text):
        append(events, event)


def _canonical(thing: Any) -> Any:
    """A value that is equal for equal states: attributes by name, strings next to each other joined."""
    if isinstance(thing, list | tuple):
        parts: list[Any] = []
        for part in map(_canonical, thing):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
        return [part for part in parts if part != ""]
    if hasattr(thing, "__func__"):
        return thing.__name__
    if hasattr(thing, "__dict__") and not isinstance(thing, Tools):
        return type(thing).__name__, {name: _canonical(value) for name, value in vars(thing).items()}
    return frozenset(thing) if isinstance(thing, set) else thing

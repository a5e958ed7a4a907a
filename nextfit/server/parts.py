"""An answer as a row of parts, thoughts, texts and calls, for the APIs that number such parts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nextfit.text.events import Arguments, CallBegin, CallEnd, Content, Event, Reasoning


@dataclass(slots=True)
class Part:
    """`text` is the arguments of a call."""

    index: int
    kind: Literal["thought", "text", "call"]
    name: str = ""  # of the function that is called
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    open: bool = True
    whole: bool = False
    pieces: list[str] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Change(NamedTuple):
    """A part begins, gets more `text`, or ends; so does a call whose arguments were cut off, but it is not whole."""

    what: Literal["begin", "more", "end"]
    part: Part
    text: str = ""


class Parts:
    """The parts so far; a new one begins where the kind of event changes."""

    def __init__(self) -> None:
        self.all: list[Part] = []
        self._open: Part | None = None

    @property
    def called(self) -> bool:
        return any(part.kind == "call" for part in self.all)

    def add(self, event: Event) -> Iterator[Change]:
        match event:
            case Reasoning(text):
                yield from self._more("thought", text)
            case Content(text):
                yield from self._more("text", text)
            case CallBegin(_, name):
                yield from self._begin(Part(len(self.all), "call", name))
            case Arguments(_, text):
                yield from self._more("call", text)
            case CallEnd(_):
                yield from self._end(whole=True)

    def end(self) -> Iterator[Change]:
        """What is open ends with the answer."""
        if self._open is not None:
            yield from self._end(whole=self._open.kind != "call")

    def _more(self, kind: Literal["thought", "text", "call"], text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(Part(len(self.all), kind))
        assert self._open is not None
        self._open.pieces.append(text)
        yield Change("more", self._open, text)

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self.end()
        self._open = part
        self.all.append(part)
        yield Change("begin", part)

    def _end(self, whole: bool) -> Iterator[Change]:
        assert self._open is not None
        part, self._open = self._open, None
        part.open, part.whole = False, whole
        yield Change("end", part)

"""An answer as the model writes it, taken apart while it arrives: thinking, content, tool calls.

The result does not depend on how the text is cut into pieces, and the events together are no longer than
`MAX_GROWTH` times the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nextfit.text.calls import CallReader
from nextfit.text.events import CallEnd, Content, Event, Reasoning, append
from nextfit.text.fence import Fence
from nextfit.text.tags import Lexeme, Tag, TagReader, raw
from nextfit.text.tools import Tools

MAX_GROWTH = 6  # a control character in an argument becomes \u0001


class Reader(Protocol):
    """What turns an answer's text into events."""

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning."""

    @property
    def held(self) -> int:
        """Characters that have come and may still become content."""

    @property
    def done(self) -> bool:
        """Whether the answer is to end here."""

    def push(self, text: str) -> list[Event]: ...
    def finish(self, cut: bool) -> list[Event]: ...


class PlainReader:
    """All text is content."""

    thinking = done = False
    held = 0

    def push(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self, cut: bool) -> list[Event]:
        return []


class MarkupReader:
    """`push` text, then `finish`; both return what has become certain.

    The answer begins in thought with `thinking` (the prompt ended in `<think>`), or if its first mark is
    `<think>`; the first `</think>` ends the thought, and one that follows at once is dropped. Later ones are content,
    as everything is that only mentions a mark. White space around a thought and behind a call is layout.

    Calls stand in the content, see `calls`. A thought that *ends* in calls, with no `</think>` behind
    them, ended before them. With `single`, the answer is done after its first call.
    """

    def __init__(self, tools: Tools, *, thinking: bool = False, single: bool = False) -> None:
        self._tools, self._single = tools, single
        self._tags = TagReader()
        self._events: list[Event] = []
        self._calls = CallReader(tools, self._events, single=single)
        self._space: list[str] = []  # white space, layout unless more of the same kind follows
        self._fence = Fence()  # in the thought
        self._trial = CallReader(tools, [], bare=True)  # of calls in the thought
        self._tried: list[str] = []  # what it has read
        self._state: Callable[[Lexeme], None] = self._thought_begins if thinking else self._begins

    @property
    def thinking(self) -> bool:
        return self._state in (self._thought_begins, self._thought, self._call_in_thought)

    @property
    def held(self) -> int:
        return self._calls.held + self._tags.held

    @property
    def done(self) -> bool:
        return self._calls.done

    def push(self, text: str) -> list[Event]:
        return self._read(self._tags.push(text))

    def finish(self, cut: bool) -> list[Event]:
        """No more comes. An answer that was `cut` off may have an open call, which then has no CallEnd."""
        events = self._read(self._tags.finish())
        if self._state == self._call_in_thought:
            self._trial.finish(cut)
            self._reject() if cut or self._mentioned else self._accept()
        if self.thinking and self._space:
            append(self._events, Reasoning("".join(self._space)))
        elif self._state == self._begins:
            self._answer("".join(self._space))
        self._calls.finish(cut)
        return events + self._given()

    def _read(self, lexemes: list[Lexeme]) -> list[Event]:
        for lexeme in lexemes:
            self._state(lexeme)
        return self._given()

    def _given(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events

    # states

    def _begins(self, lexeme: Lexeme) -> None:
        """No mark and no text yet, and the prompt did not open a thought."""
        match lexeme:
            case str() if lexeme.isspace():
                self._space.append(lexeme)
            case Tag("think"):
                self._space, self._state = [], self._thought_begins
            case _:
                self._answer("".join(self._space))
                self._space, self._state = [], self._answer
                self._answer(lexeme)

    def _thought_begins(self, lexeme: Lexeme) -> None:
        if isinstance(lexeme, str):
            lexeme = lexeme.lstrip()
        elif lexeme.kind == "think":
            return
        if lexeme:
            self._state = self._thought
            self._thought(lexeme)

    def _thought(self, lexeme: Lexeme) -> None:
        match lexeme:
            case Tag("/think"):
                self._space = []
                self._calls = CallReader(self._tools, self._events, bare=True, single=self._single)
                self._state = self._thought_ended
            case Tag("tool_call") if self._tools and not self._fence.inside:
                self._state = self._call_in_thought
                self._call_in_thought(lexeme)
            case _:
                self._think(raw(lexeme))

    def _call_in_thought(self, lexeme: Lexeme) -> None:
        if isinstance(lexeme, Tag) and lexeme.kind == "/think":
            self._reject()
            self._thought(lexeme)
            return
        self._tried.append(raw(lexeme))
        self._trial.read(lexeme)
        if self._mentioned:
            self._reject()

    def _thought_ended(self, lexeme: Lexeme) -> None:
        match lexeme:
            case Tag("/think"):
                pass
            case _:
                self._answer(lexeme)
                if not isinstance(lexeme, str) or not lexeme.isspace():
                    self._state = self._answer

    def _answer(self, lexeme: Lexeme) -> None:
        self._calls.read(lexeme)

    # steps

    def _think(self, text: str) -> None:
        self._fence.push(text)
        if kept := text.rstrip():
            append(self._events, Reasoning("".join(self._space) + kept))
            self._space = []
        if space := text[len(kept) :]:
            self._space.append(space)

    @property
    def _mentioned(self) -> bool:
        """Whether the last mark in the thought was text."""
        return bool(self._trial.events) and isinstance(self._trial.events[-1], Content)

    def _reject(self) -> None:
        """What was tried is part of the thought."""
        tried = "".join(self._tried)
        self._trial, self._tried = CallReader(self._tools, [], bare=True), []
        self._state = self._thought
        self._think(tried)

    def _accept(self) -> None:
        """The thought ended before the calls that were tried."""
        self._space, self._state, self._calls = [], self._answer, self._trial
        events = self._trial.events
        if self._single:
            events = events[: events.index(CallEnd(0)) + 1]
        self._events += events

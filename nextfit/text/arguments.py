"""The parameters of one tool call as the text of a JSON object, piece by piece."""

from __future__ import annotations

import json

from nextfit.text.events import Arguments, Event, append
from nextfit.text.tools import STRING, Parameters, as_json


class ArgumentWriter:
    """`open` a parameter, `add` its text, `close` it; `end` closes the object. What is new goes to `events`.

    Strings are written as they come; other types, and strings of a form, when they are closed. One line break behind
    the opening mark and one before the closing mark are layout. A parameter that was given already is left out.
    """

    def __init__(self, parameters: Parameters, index: int, events: list[Event]) -> None:
        self._parameters, self._index, self._events = parameters, index, events
        self._given: set[str] = set()
        # of the open parameter:
        self._types = STRING
        self._trimmed = False
        self._repeated = False
        self._bare = True  # no text yet
        self._new_line = True
        self._break = ""  # the last line break, layout unless more comes
        self._parts: list[str] = []  # text that is written when it is closed

    def open(self, name: str) -> None:
        self._types, self._repeated = self._parameters.types(name), name in self._given
        self._trimmed = self._parameters.trimmed(name)
        self._bare, self._new_line, self._break, self._parts = True, True, "", []
        if not self._repeated:
            before = "," if self._given else "{"
            quote = '"' if self._streamed else ""
            self._emit(f"{before}{_quoted(name)}:{quote}")
            self._given.add(name)

    def may_open(self, name: str) -> bool:
        """Whether a mark inside the open one begins another: it is declared, new, and begins a line."""
        return self._new_line and name in self._parameters and name not in self._given

    def add(self, text: str) -> None:
        """More text, at least one character."""
        self._new_line = text[-1] == "\n"
        if self._bare:
            self._bare = False
            text = text.removeprefix("\n")
        text = self._break + text
        self._break = "\n" if text.endswith("\n") else ""
        text = text[: len(text) - len(self._break)]
        if not self._streamed:
            self._parts.append(text)
        elif text and not self._repeated:
            self._emit(_quoted(text)[1:-1])

    def close(self) -> None:
        if self._repeated:
            return
        text = "".join(self._parts)
        self._emit('"' if self._streamed else as_json(text.strip() if self._trimmed else text, self._types))

    @property
    def _streamed(self) -> bool:
        return self._types == STRING and not self._trimmed

    def end(self) -> None:
        self._emit("}" if self._given else "{}")

    def _emit(self, text: str) -> None:
        append(self._events, Arguments(self._index, text))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

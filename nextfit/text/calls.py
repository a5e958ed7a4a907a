"""Tool calls in an answer's text, in the format that Qwen's templates teach:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A call is one only if it names a declared tool and its marks follow each other with nothing but white space between
them; it does not begin inside code. Everything else is content, letter by letter.

Closing marks may be missing or doubled, and may be part of a value. They end it where what follows can only follow a
value: another parameter after `</parameter>`, another call, the end, or anything after marks of two kinds.
"""

from __future__ import annotations

from collections.abc import Callable

from nextfit.text.arguments import ArgumentWriter
from nextfit.text.events import CallBegin, CallEnd, Content, Event, append
from nextfit.text.fence import Fence
from nextfit.text.tags import Lexeme, Tag, raw
from nextfit.text.tools import Tools

_LEVEL = {"/parameter": 1, "/function": 2, "/tool_call": 3}


class CallReader:
    """`read` lexemes, then `finish`; `events` grows.

    With `bare`, white space before the content is layout; with `single`, all is ignored behind the first call.
    """

    def __init__(
        self, tools: Tools, events: list[Event], *, bare: bool = False, single: bool = False
    ) -> None:
        self.events = events
        self.done = False
        self._tools, self._bare, self._single = tools, bare, single
        self._state: Callable[[Lexeme], None] = self._content
        self.held = 0  # characters that may still become content
        self._pending: list[Lexeme] = []  # what they are depends on what follows
        self._levels: list[int] = []  # of the closing marks among them
        self._fence = Fence()
        self._name = ""
        self._begun = 0  # calls
        self._arguments: ArgumentWriter

    def read(self, lexeme: Lexeme) -> None:
        self._state(lexeme)

    def finish(self, cut: bool) -> None:
        """No more comes. What lacks its closing marks is complete, unless the text was `cut` off."""
        if self._state == self._opening:
            if self._name:
                self._begin()
            else:
                self._give_up()
        closed = self._state == self._closing and self._levels[0] < self._levels[-1] == 3
        if self._state in (self._value, self._closing) and (closed or not cut):
            self._end_value()
        if self._state == self._inside and (closed or not cut):
            self._end()

    # states

    def _content(self, lexeme: Lexeme) -> None:
        if _kind(lexeme) == "tool_call" and self._tools and not self._fence.inside:
            self._name, self._state = "", self._opening
            self._hold(lexeme)
        else:
            self._say(raw(lexeme))

    def _opening(self, lexeme: Lexeme) -> None:
        """`<tool_call>`, perhaps the function's mark, and nothing else yet."""
        match lexeme:
            case str() if lexeme.isspace():
                self._hold(lexeme)
            case Tag("tool_call") if not self._name:
                self._hold(lexeme)
            case Tag("function", _, name) if not self._name and name in self._tools:
                self._name = name
                self._hold(lexeme)
            case Tag("parameter" | "/function" | "/tool_call" | "tool_call") if self._name:
                self._begin()
                self.read(lexeme)
            case _:
                self._give_up()
                self.read(lexeme)

    def _inside(self, lexeme: Lexeme) -> None:
        """Inside a function, but in no parameter."""
        match lexeme:
            case str() if lexeme.isspace():
                pass
            case Tag("parameter", _, name):
                self._arguments.open(name)
                self._state = self._value
            case _:
                self._end()
                self.read(lexeme)

    def _value(self, lexeme: Lexeme) -> None:
        match lexeme:
            case Tag("parameter", _, name) if self._arguments.may_open(name):
                self._arguments.close()
                self._arguments.open(name)
            case Tag("/parameter" | "/function" | "/tool_call"):
                self._state = self._closing
                self._hold(lexeme)
            case _:
                self._arguments.add(raw(lexeme))

    def _closing(self, lexeme: Lexeme) -> None:
        """Closing marks that end the value or are part of it."""
        last = self._levels[-1]
        match lexeme:
            case str() if lexeme.isspace():
                self._hold(lexeme)
                return
            case Tag(kind) if _LEVEL.get(kind, 0) >= last:
                self._hold(lexeme)
                return
            case Tag("/parameter" | "/function"):
                ended = False
            case Tag("parameter"):
                ended = last == 1
            case Tag("tool_call"):
                ended = True
            case _:
                ended = self._levels[0] < last
        if ended:
            self._end_value()
        else:
            for held in self._release():
                self._arguments.add(raw(held))
            self._state = self._value
        self.read(lexeme)

    def _after(self, lexeme: Lexeme) -> None:
        """After a call."""
        match lexeme:
            case _ if self.done:
                pass
            case str() if lexeme.isspace():
                pass
            case Tag("/parameter" | "/function" | "/tool_call"):
                pass
            case _:
                self._bare, self._fence, self._state = True, Fence(), self._content
                self.read(lexeme)

    # steps

    def _say(self, text: str) -> None:
        if self._bare:
            text = text.lstrip()
        if text:
            self._bare = False
            self._fence.push(text)
            append(self.events, Content(text))

    def _hold(self, lexeme: Lexeme) -> None:
        self._pending.append(lexeme)
        self.held += len(raw(lexeme))
        if isinstance(lexeme, Tag) and lexeme.kind in _LEVEL:
            self._levels.append(_LEVEL[lexeme.kind])

    def _release(self) -> list[Lexeme]:
        pending, self._pending, self._levels, self.held = self._pending, [], [], 0
        return pending

    def _give_up(self) -> None:
        """What looked like a call is content."""
        self._state = self._content
        for lexeme in self._release():
            self._say(raw(lexeme))

    def _begin(self) -> None:
        self._release()
        self._arguments = ArgumentWriter(self._tools[self._name], self._begun, self.events)
        self.events.append(CallBegin(self._begun, self._name))
        self._begun += 1
        self._state = self._inside

    def _end_value(self) -> None:
        self._arguments.close()
        self._release()
        self._state = self._inside

    def _end(self) -> None:
        self._arguments.end()
        self.events.append(CallEnd(self._begun - 1))
        self.done = self._single
        self._state = self._after


def _kind(lexeme: Lexeme) -> str:
    return lexeme.kind if isinstance(lexeme, Tag) else ""

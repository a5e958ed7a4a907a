"""Fenced code in a text that arrives in pieces (CommonMark's fences, but for those inside lists)."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_MAX_LINE = 256  # characters of a line that opens or closes


class Fence:
    """Knows whether the next character stands in code: between fences, or behind a backtick."""

    def __init__(self) -> None:
        self._line = ""  # the current one, or as much as matters
        self._open = ""  # the fence to be closed
        self._last = ""  # character

    def push(self, text: str) -> None:
        first, *more = text.split("\n")
        self._line = (self._line + first)[:_MAX_LINE] if len(self._line) < _MAX_LINE else self._line
        for line in more:
            self._open = self._after_line()
            self._line = line[:_MAX_LINE]
        self._last = text[-1:] or self._last

    @property
    def inside(self) -> bool:
        return bool(self._open or self._after_line()) or self._last == "`"

    def _after_line(self) -> str:
        """The open fence if the current line ends here."""
        match = _FENCE.fullmatch(self._line)
        if match is None:
            return self._open
        mark, rest = match[1], match[2]
        if not self._open:
            return "" if mark[0] == "`" and "`" in rest else mark
        closes = mark[0] == self._open[0] and len(mark) >= len(self._open) and not rest.strip()
        return "" if closes else self._open

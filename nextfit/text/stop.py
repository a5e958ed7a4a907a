"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nextfit.errors import RequestError


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string was found: `start` and `end` are character positions since the first piece."""

    stop: str
    start: int
    end: int


class StopFinder:
    """Finds the stop string that is complete first; of several that end together, the longest.

    The rule looks at one character after the other, so how the text is cut into pieces changes
    nothing. Text is held back only while it may still be the beginning of a stop string
    (Knuth-Morris-Pratt, one state per stop string).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise RequestError("a stop string is empty, expected at least one character", "stop")
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._borders = [_borders(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # characters of each stop string matched so far
        self._held = ""
        self._seen = 0

    def push(self, text: str) -> tuple[str, StopMatch | None]:
        """Text that is now certain to stand before any stop string, and the match if there is one.

        After a match the finder is used up.
        """
        for i, character in enumerate(text):
            if (stop := self._advance(character)) is not None:
                end = self._seen + i + 1
                before = (self._held + text[: i + 1])[: -len(stop)]
                return before, StopMatch(stop, end - len(stop), end)
        self._seen += len(text)
        text = self._held + text
        keep = len(text) - max(self._states, default=0)
        self._held = text[keep:]
        return text[:keep], None

    def finish(self) -> str:
        """The text held back, once it is known that no more comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        for n, stop in enumerate(self._stops):
            k = self._states[n]
            while k and stop[k] != character:
                k = self._borders[n][k]
            if stop[k] == character:
                k += 1
            if k == len(stop):
                return stop
            self._states[n] = k
        return None


def _borders(stop: str) -> list[int]:
    """For each k, the length of the longest proper prefix of `stop[:k]` that is also its end."""
    borders, k = [0, 0], 0
    for character in stop[1:]:
        while k and stop[k] != character:
            k = borders[k]
        if stop[k] == character:
            k += 1
        borders.append(k)
    return borders

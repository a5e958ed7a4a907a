"""One answer's tokens to its text: whole characters, cut at the first stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nextfit.text.detokenize import Detokenizer
from nextfit.text.stop import StopFinder
from nextfit.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one step adds to an answer.

    `tokens` counts the tokens since the start whose text has been given out, so the tokens (and
    logprobs) of this delta are those from the previous delta's `tokens` to this one's. A token whose
    text is held back, or which is part of an unfinished character, is counted later. When a stop string
    begins inside a token, that token counts: it gave text. `matched` is the number of tokens up to and
    including the one that completed the stop string (what was generated to get there).
    """

    text: str
    stopped: str | None
    tokens: int
    matched: int | None = None


class TextStream:
    """`push` tokens, send what comes back, `finish` at the end.

    With `skip_special`, a stop string that is the name of a special token still stops at that token,
    though its text is never part of the answer.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, skip_special: bool = True) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._finder = StopFinder(stop)
        ids = ((tokenizer.id_of(s), s) for s in stop)
        self._stop_ids = {id: s for id, s in ids if skip_special and id in tokenizer.special_ids}
        self._pushed = 0  # tokens
        self._decoded = 0  # characters
        self._given = 0  # characters
        self._covered = (0, 0)  # (tokens, characters): the last edge below that lies within the given text
        # where the end of a token is also the end of a character, in text not yet given
        self._edges: deque[tuple[int, int]] = deque()
        self._end: TextDelta | None = None

    def push(self, ids: Iterable[int]) -> TextDelta:
        """Text made certain by `ids`; tokens after a stop string are ignored."""
        parts = []
        for id in ids:
            if self._end is not None:
                break
            parts.append(self._push(id))
        text = "".join(parts)
        if self._end is not None:
            return TextDelta(text, self._end.stopped, self._end.tokens, self._end.matched)
        return TextDelta(text, None, self._covered[0])

    def finish(self) -> TextDelta:
        """The rest: text held back for a stop string that never came. Open bytes are dropped."""
        if self._end is not None:
            return self._end
        self._end = TextDelta("", None, self._pushed)
        return TextDelta(self._finder.finish(), None, self._pushed)

    def _push(self, id: int) -> str:
        self._pushed += 1
        if (stop := self._stop_ids.get(id)) is not None:
            text = self._finder.finish()
            self._settle(text)
            self._end = TextDelta("", stop, self._covered[0], self._pushed)
            return text
        piece = self._detokenizer.push((id,))
        self._decoded += len(piece)
        if not self._detokenizer.open:
            self._edges.append((self._pushed, self._decoded))
        text, match = self._finder.push(piece)
        self._settle(text)
        if match is not None:
            tokens, characters = self._covered
            if characters < self._given:  # the stop string began inside a token
                tokens = self._edges[0][0] if self._edges else self._pushed
            self._end = TextDelta("", match.stop, tokens, self._pushed)
        return text

    def _settle(self, text: str) -> None:
        self._given += len(text)
        while self._edges and self._edges[0][1] <= self._given:
            self._covered = self._edges.popleft()

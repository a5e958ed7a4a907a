"""One answer's tokens to its text: whole characters, taken apart by a reader, cut at the first stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nextfit.text.detokenize import Detokenizer
from nextfit.text.events import Content, Event, append
from nextfit.text.markup import PlainReader, Reader
from nextfit.text.stop import StopFinder
from nextfit.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one step adds to an answer.

    `tokens` counts the tokens since the start whose text has been given out, so the tokens (and
    logprobs) of this delta are those from the previous delta's `tokens` to this one's. A token whose
    text is held back, or which is part of an unfinished character, is counted later. When a stop string
    begins inside a token, that token counts: it gave text. `stopped` is the stop string that ended the answer, or the
    mark after which its reader wants no more; `matched` is the number of tokens up to and including the one that
    completed it (what was generated to get there).
    """

    events: tuple[Event, ...]
    stopped: str | None
    tokens: int
    matched: int | None = None

    @property
    def text(self) -> str:
        """The content in `events`."""
        return "".join([event.text for event in self.events if isinstance(event, Content)])


class TextStream:
    """`push` tokens, send what comes back, `finish` at the end.

    Stop strings are looked for in the content: not in reasoning, not in tool calls, not across them. With
    `skip_special`, a stop string that is the name of a special token still stops at that token,
    though its text is never part of the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        reader: Reader | None = None,
        *,
        skip_special: bool = True,
    ) -> None:
        self.reasoning_tokens = 0  # up to and with the one that ended the thought
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._reader: Reader = PlainReader() if reader is None else reader
        self._stop = stop
        self._finder = StopFinder(stop)
        ids = ((tokenizer.id_of(s), s) for s in stop)
        self._stop_ids = {id: s for id, s in ids if skip_special and id in tokenizer.special_ids}
        self._pushed = 0  # tokens
        self._read = 0  # characters of content
        self._given = 0  # characters of content
        self._covered = (0, 0)  # (tokens, characters): the last edge below that lies within the given content
        # where the end of a token is also the end of a character, in content not yet given
        self._edges: deque[tuple[int, int]] = deque()
        self._events: list[Event] = []  # of this delta
        self._end: TextDelta | None = None

    def push(self, ids: Iterable[int]) -> TextDelta:
        """What is made certain by `ids`; tokens after a stop string are ignored."""
        for id in ids:
            if self._end is not None:
                break
            self._push(id)
        return self._delta()

    def finish(self, cut: bool = False) -> TextDelta:
        """The rest: text held back for what never came. Open bytes are dropped.

        An answer that was `cut` off may lack the end of a tool call.
        """
        if self._end is None:
            self._take(self._reader.finish(cut))
        if self._end is None:
            self._say(self._finder.finish())
            self._end = TextDelta((), None, self._pushed)
        return self._delta()

    def _delta(self) -> TextDelta:
        events, self._events = tuple(self._events), []
        if self._end is None:
            return TextDelta(events, None, self._covered[0])
        return TextDelta(events, self._end.stopped, self._end.tokens, self._end.matched)

    def _push(self, id: int) -> None:
        self._pushed += 1
        if (stop := self._stop_ids.get(id)) is not None and not self._reader.thinking:
            self._take(self._reader.finish(cut=False))
            self._say(self._finder.finish())
            self._end = TextDelta((), stop, self._covered[0], self._pushed)
            return
        self.reasoning_tokens += self._reader.thinking
        piece = self._detokenizer.push((id,))
        events = self._reader.push(piece)
        if not self._detokenizer.open:
            new = sum(len(event.text) for event in events if isinstance(event, Content))
            self._edges.append((self._pushed, self._read + new + self._reader.held))
        self._take(events)
        if self._reader.done and self._end is None:
            self._end = TextDelta((), "</tool_call>", self._pushed, self._pushed)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if not isinstance(event, Content):
                self._say(self._finder.finish())
                self._finder = StopFinder(self._stop)
                self._covered = (self._pushed, self._given)
                self._edges.clear()
                append(self._events, event)
                continue
            self._read += len(event.text)
            text, match = self._finder.push(event.text)
            self._say(text)
            if match is not None:
                tokens, characters = self._covered
                if characters < self._given:  # the stop string began inside a token
                    tokens = self._edges[0][0] if self._edges else self._pushed
                self._end = TextDelta((), match.stop, tokens, self._pushed)
                return

    def _say(self, text: str) -> None:
        if text:
            append(self._events, Content(text))
        self._given += len(text)
        while self._edges and self._edges[0][1] <= self._given:
            self._covered = self._edges.popleft()

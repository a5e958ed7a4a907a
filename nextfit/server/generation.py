"""The choices of one HTTP request, from token ids to pieces of text."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request, Sampled
from nextfit.errors import RequestError
from nextfit.server.errors import ApiError
from nextfit.server.messages import Accepted
from nextfit.server.metrics import Timer
from nextfit.server.observe import Record
from nextfit.server.service import Served
from nextfit.server.worker import Event as EngineEvent
from nextfit.text import Reader, TextStream, formats
from nextfit.text.events import Content, Event, Reply


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in choice `index`; `tokens` are those whose text came out since the last piece.

    `stop` is the stop string that ended it.
    """

    index: int
    events: tuple[Event, ...]
    tokens: tuple[Sampled, ...]
    finish_reason: str | None
    stop: str | None = None
    prompt: tuple[Sampled, ...] = ()  # more of the prompt, with log-probabilities, from its second token on

    @property
    def text(self) -> str:
        """Its content."""
        return "".join([event.text for event in self.events if isinstance(event, Content)])


@dataclass(slots=True)
class Usage:
    """Token counts of all choices; a prompt that several choices share counts once."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def as_json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


class _Choice:
    """One running choice: its engine request and the text of its tokens."""

    def __init__(
        self,
        served: Served,
        index: int,
        request: Request,
        timer: Timer,
        reader: Reader | None,
        *,
        first: bool,
    ) -> None:
        self.index = index
        self.first = first  # of its prompt
        self.request = request
        self.reason: str | None = None  # why it ended
        self.timer = timer
        self._cached = 0
        self._stream = TextStream(served.tokenizer, request.params.stop, reader)
        self._sampled: list[Sampled] = []
        self._given = 0  # tokens whose text is out

    def advance(self, output: Output, usage: Usage) -> Piece:
        """Account for one engine output. A stop string ends the choice before the engine does."""
        self._sampled.extend(output.tokens)
        if output.stats is not None:
            self._cached = output.stats.cached_tokens
        delta = self._stream.push(s.token for s in output.tokens)
        events, reason = delta.events, None
        if delta.stopped is None and output.finish_reason is not None:
            reason = output.finish_reason
            delta = self._stream.finish(cut=reason != "stop")
            events += delta.events
        if delta.stopped is not None:
            reason = "stop"
        tokens = tuple(self._sampled[self._given : delta.tokens])
        self._given = delta.tokens
        if reason is not None:
            self.end(reason, usage, delta.matched)
        stop = delta.stopped if delta.stopped in self.request.params.stop else None
        return Piece(self.index, events, tokens, reason, stop, output.prompt)

    def end(self, reason: str, usage: Usage, tokens: int | None = None) -> None:
        """Count the choice with its first `tokens` tokens (None: all of them)."""
        self.reason = reason
        self.timer.end(reason)
        usage.completion_tokens += len(self._sampled) if tokens is None else tokens
        usage.reasoning_tokens += self._stream.reasoning_tokens
        usage.cached_tokens += self._cached if self.first else 0


@dataclass(slots=True)
class Answer:
    """A whole choice."""

    reply: Reply = field(default_factory=Reply)
    tokens: list[Sampled] = field(default_factory=list)
    prompt: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """Its content."""
        return self.reply.content


class Generation:
    """Runs `prompts` x `params`: choice i of prompt p has index p * len(params) + i.

    `reader` makes what takes a choice's text apart; without, all of it is content.
    After `start`, `close` must be called, however the request ends: it cancels whatever still runs.
    """

    def __init__(
        self,
        served: Served,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        record: Record,
        reader: Callable[[], Reader] | None = None,
    ) -> None:
        self.served, self.record = served, record
        self.usage = Usage(sum(map(len, prompts)))
        self._worker = served.worker
        self._events: asyncio.Queue[tuple[int, EngineEvent]] = asyncio.Queue()
        self._early: deque[tuple[int, EngineEvent]] = deque()  # came before the last choice was taken
        self._timeout: asyncio.TimerHandle | None = None
        self._choices = [
            _Choice(
                served,
                i,
                Request(f"{record.id}-{i}", prompt, one),
                Timer(record.metrics, record.arrived),
                reader() if reader else None,
                first=one is params[0],
            )
            for i, (prompt, one) in enumerate((p, s) for p in prompts for s in params)
        ]

    async def start(self) -> None:
        """Returns once the engine has taken every choice. Raises, closed, what it refused one with.

        Raises QueueFull before anything is handed over if they are more than may wait.
        """
        self._worker.admit(len(self._choices))
        loop = asyncio.get_running_loop()
        if self.record.timeout is not None:
            left = self.record.arrived + self.record.timeout - time.monotonic()
            self._timeout = loop.call_later(left, self._expire)
        for choice in self._choices:
            self._worker.submit(choice.request, partial(self._deliver, loop, choice.index))
        try:
            for _ in self._choices:
                while not isinstance((item := await self._events.get())[1], Accepted):
                    if isinstance(item[1], Exception):
                        self.close("error")
                        raise item[1]
                    self._early.append(item)
        except BaseException:
            self.close()
            raise

    def close(self, reason: str = "abort") -> None:
        """End what still runs, for this reason."""
        if self._timeout is not None:
            self._timeout.cancel()
        for choice in self._choices:
            if choice.reason is None:
                choice.end(reason, self.usage)
                self._worker.cancel(choice.request.id)
        self.record.notes = {
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "finish": ",".join(sorted({choice.reason or "" for choice in self._choices})),
        }

    async def answers(self) -> list[Answer]:
        """All choices, whole. Closes."""
        answers = [Answer() for _ in self._choices]
        try:
            async for piece in self.pieces():
                answer = answers[piece.index]
                for event in piece.events:
                    answer.reply.add(event)
                answer.tokens += piece.tokens
                answer.prompt += piece.prompt
                answer.finish_reason = piece.finish_reason
        finally:
            self.close()
        return answers

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces of all choices as they come, each choice's last one with a finish reason."""
        running = len(self._choices)
        while running:
            index, event = self._early.popleft() if self._early else await self._events.get()
            choice = self._choices[index]
            if isinstance(event, Exception):
                self.close("error")
                raise event
            if isinstance(event, Accepted) or choice.reason is not None:
                continue
            if event.finish_reason in ("error", "cancelled"):
                self.close("error")
                raise _failure(event, choice.request.params)
            piece = choice.advance(event, self.usage)
            if choice.reason is not None:
                running -= 1
                if event.finish_reason is None:
                    self._worker.cancel(choice.request.id)
            yield piece

    def _expire(self) -> None:
        """Free what the request holds, also where nobody reads what it said; then tell."""
        for choice in self._choices:
            self._worker.cancel(choice.request.id)
        message = f"the answer is not finished after {self.record.timeout:g} s (--request-timeout)"
        self._events.put_nowait((0, ApiError(504, message, code="timeout")))

    def _deliver(self, loop: asyncio.AbstractEventLoop, index: int, event: EngineEvent) -> None:
        """Called on the thread that reads the engine's events."""
        timer = self._choices[index].timer
        if isinstance(event, Output):
            timer.advance(event)
        elif isinstance(event, Exception):
            timer.end(None if isinstance(event, RequestError) else "error")
        try:
            loop.call_soon_threadsafe(self._events.put_nowait, (index, event))
        except RuntimeError:  # the loop has closed, so nobody listens
            self._worker.cancel(self._choices[index].request.id)


def _failure(output: Output, params: SamplingParams) -> Exception:
    """What a client is told of an answer that the engine gave up."""
    why = output.error or f"the engine ended the request: {output.finish_reason}"
    if output.param is None or params.grammar is None:
        return ApiError(500, why)
    field, *others = formats.fields(params.grammar)
    return RequestError(why) if others else RequestError(f"{field}: {why}", field)

"""Server-sent events, and the rule that a client that goes away takes its work with it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nextfit.server.errors import ApiError, describe, shape

log = logging.getLogger("nextfit")

KEEPALIVE_SECONDS = 10.0
_T = TypeVar("_T")


class Disconnected(Exception):
    """The client has gone; there is nobody to answer."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first(work: asyncio.Task[Any], receive: Receive) -> None:
    """Wait for `work`; cancel it, `finally` blocks included, when the client or the server goes away."""
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`. Raises Disconnected when the client leaves first; `work` is then cancelled.

    Raises ApiError if the server will wait no longer.
    """
    task = asyncio.ensure_future(work)
    try:
        await _first(task, request.receive)
    except asyncio.CancelledError:
        raise _stopping() from None
    if task.cancelled():
        raise Disconnected
    return task.result()


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(data: dict[str, Any]) -> bytes:
    """An event that bears its type as its name too."""
    return b"event: %s\n%s" % (data["type"].encode(), event(data))


def _flat(body: dict[str, Any]) -> bytes:
    """An error in a stream of responses."""
    return named_event({**body["error"], "type": "error"})


class Wire(NamedTuple):
    """How an API spells a stream: an event, an error, what it sends when there is none for a while, and its end."""

    event: Callable[[dict[str, Any]], bytes]
    error: Callable[[dict[str, Any]], bytes]
    keepalive: bytes
    end: bytes


OPENAI = Wire(event, event, b": keepalive\n\n", b"data: [DONE]\n\n")
RESPONSES = Wire(named_event, _flat, b": keepalive\n\n", b"")
ANTHROPIC = Wire(named_event, named_event, named_event({"type": "ping"}), b"")


def _stopping() -> ApiError:
    """What uvicorn means by cancelling: running answers have had their time (--drain)."""
    return ApiError(
        503, "the server is stopping and waits no longer for this answer (--drain)", code="stopping"
    )


class EventStream(Response):
    """Sends the events of `events` as `wire` spells them.

    `close` is called when the last event is out or the client leaves, at once. An exception of the
    generator becomes an error event: the status line has been sent long ago.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[dict[str, Any], None], close: Callable[[], None], wire: Wire = OPENAI
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._wire = wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._send(scope, send))
        try:
            await _first(task, receive)
        except asyncio.CancelledError:
            told = self._wire.error(shape(_stopping(), scope))
            await send({"type": "http.response.body", "body": told + self._wire.end})
            return
        finally:
            self._close()
        if not task.cancelled():
            task.result()

    async def _send(self, scope: Scope, send: Send) -> None:
        async def body(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        coming: asyncio.Future[dict[str, Any]] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(self._events))
                while not (await asyncio.wait({coming}, timeout=KEEPALIVE_SECONDS))[0]:
                    await body(self._wire.keepalive)
                await body(self._wire.event(coming.result()))
        except StopAsyncIteration:
            pass
        except Exception as error:
            told = describe(error)
            if told.code == "internal":
                log.exception("a stream failed")
            await body(self._wire.error(shape(told, scope)))
        finally:
            if coming is not None:
                coming.cancel()
                # it may have ended just now, when this task was cancelled already
                await asyncio.gather(coming, return_exceptions=True)
            await self._events.aclose()
        await body(self._wire.end, more=False)

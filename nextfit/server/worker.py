"""The thread that drives the engine.

HTTP hands it requests through a queue and gets events back through a callback per request, so neither
side ever waits for the other. An exception of `Engine.step` ends the thread: whoever is in flight and
whoever comes later is told, nobody hangs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from nextfit.engine.request import Output, Request
from nextfit.errors import NextFitError

log = logging.getLogger("nextfit")


class EngineLike(Protocol):
    """What the thread needs of `nextfit.engine.Engine`; tests drive it with a scripted one."""

    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[Output]: ...
    def has_work(self) -> bool: ...


class Accepted:
    """The engine took the request; its first tokens are some steps away."""


Event = Accepted | Output | Exception
Deliver = Callable[[Event], None]
Command = tuple[Request, Deliver] | str | None  # add, cancel by id, stop


class EngineDied(NextFitError):
    """The engine stopped; the message says why."""


class Worker:
    """Owns `engine` from `start` to `stop`. Methods may be called from any thread and return at once."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._waiting: dict[str, Deliver] = {}  # touched by the thread only
        self._lock = threading.Lock()  # orders `submit` against the end of the thread
        self._ended: EngineDied | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def failure(self) -> str | None:
        """Why the engine no longer runs; None while it does."""
        return str(self._ended) if self._ended else None

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread after its current step, waiting `timeout` seconds at most. Requests get an error."""
        self._inbox.put(None)
        self._thread.join(timeout)

    def submit(self, request: Request, deliver: Deliver) -> None:
        """`deliver` is called on the thread: Accepted, Outputs up to a finish reason; or an exception."""
        with self._lock:
            if self._ended is None:
                self._inbox.put((request, deliver))
                return
        deliver(self._ended)

    def cancel(self, request_id: str) -> None:
        """Free what the request holds before the next step; nothing more is delivered for it."""
        self._inbox.put(request_id)

    def _add(self, request: Request, deliver: Deliver) -> None:
        try:
            self._engine.add(request)
        except Exception as error:
            if not isinstance(error, NextFitError):
                log.exception("request %s could not be added", request.id)
            deliver(error)
        else:
            self._waiting[request.id] = deliver
            deliver(Accepted())

    def _cancel(self, request_id: str) -> None:
        if self._waiting.pop(request_id, None) is not None:
            self._engine.cancel(request_id)

    def _take_commands(self) -> bool:
        """Carry out what was handed in, sleeping while there is nothing to do. False: stop."""
        idle = not self._engine.has_work()
        while True:
            try:
                command = self._inbox.get(block=idle)
            except Empty:
                return True
            if command is None:
                return False
            if isinstance(command, str):
                self._cancel(command)
            else:
                self._add(*command)
            idle = not self._engine.has_work()

    def _run(self) -> None:
        reason = "the server is stopping"
        try:
            while self._take_commands():
                for output in self._engine.step():
                    self._hand_over(output)
        except Exception as error:
            log.exception("the engine stopped")
            reason = f"the engine stopped: {type(error).__name__}: {error}"
        self._end(EngineDied(reason))

    def _hand_over(self, output: Output) -> None:
        deliver = self._waiting.get(output.request_id)
        if output.finish_reason is not None:
            self._waiting.pop(output.request_id, None)
        if deliver is not None:
            deliver(output)

    def _end(self, error: EngineDied) -> None:
        with self._lock:
            self._ended = error
        for deliver in self._waiting.values():
            deliver(error)
        self._waiting.clear()
        while not self._inbox.empty():  # handed in before the lock was taken
            command = self._inbox.get()
            if isinstance(command, tuple):
                command[1](error)

"""The server's face of the engine, which lives in a process of its own.

Nothing here waits for the engine: requests are handed over, events come back through a callback per request
on a thread that reads the link. The same thread notices the engine's end, and an engine that hangs: it gives no
sign of life and is ended. Whoever is in flight and whoever comes later is told, nobody hangs. With `restart` the
engine is then started again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from nextfit.engine.request import Output, Request
from nextfit.errors import NextFitError, RequestError
from nextfit.server import messages
from nextfit.server.link import Link, listen
from nextfit.server.messages import Accepted, Died, Ready

log = logging.getLogger("nextfit")

POLL_SECONDS = 0.1  # between two looks at whether the engine's process still runs
RESTARTS = 3
RESTART_SECONDS = 600.0  # within which the engine is started again no more often
SAVE_SECONDS = 10.0  # that each of the messages of a save may take
QUEUE = 256  # requests that may wait
ENGINE_TIMEOUT = 300.0  # seconds; a step of a large model on a slow CPU takes many


class Host(Protocol):
    """Where an engine runs: `EngineProcess`, and a thread in tests."""

    def start(self, folder: Path) -> None: ...
    def ended(self) -> str | None: ...
    def dump(self) -> None: ...
    def kill(self) -> None: ...


Event = Accepted | Output | Exception
Deliver = Callable[[Event], None]


class EngineDied(NextFitError):
    """The engine stopped; the message says why."""


class QueueFull(NextFitError):
    """As many requests wait as may."""


class Worker:
    """Owns the engine on `host` from `start` to `stop`. Methods may be called from any thread.

    An engine that is ready and then sends nothing for `timeout` seconds counts as dead.
    """

    def __init__(
        self, host: Host, queue: int = QUEUE, restart: bool = False, timeout: float = ENGINE_TIMEOUT
    ) -> None:
        self.ready: Ready | None = None  # of the engine that runs or ran last
        self.gauges: messages.Gauges | None = None  # of the engine that runs; None while it loads
        self.silence = 0.0  # seconds without a sign of life from an engine that is ready
        self.restarts = 0
        self._host = host
        self.queue = queue
        self._restart = restart
        self._timeout = timeout
        self._restarts: list[float] = []  # when, in seconds of the monotonic clock
        self._before = ""  # what to say before the progress of loading
        self._lock = threading.Lock()  # over what follows
        self._down: str | None = "the model is loading"  # why nothing can be served
        self._link: Link[messages.Event] | None = None  # of an engine that is ready
        self._waiting: dict[str, Deliver] = {}
        self._settled = threading.Event()  # ready for the first time, or ended for good
        self._stop_at: float | None = None  # when an engine that was told to stop is killed
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def failure(self) -> str | None:
        """Why nothing can be served now; None when something can."""
        return self._down

    @property
    def in_flight(self) -> int:
        """Requests that were handed over and have not ended."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Until the model is loaded. Raises EngineDied if it cannot be."""
        self._settled.wait()
        if self.ready is None:
            raise EngineDied(self._down)

    def stop(self, timeout: float) -> None:
        """End the engine after its current step, which may take `timeout` seconds. Requests get an error.

        Saving the prefix cache after that takes as long as it takes, while it gets on.
        """
        with self._lock:
            self._stop_at = time.monotonic() + (timeout if self._link else 0)
            if self._link:
                self._link.send(messages.Stop())
        if self._thread.ident is not None:
            while self._thread.is_alive() and time.monotonic() < self._stop_at + 10 * POLL_SECONDS:
                self._thread.join(POLL_SECONDS)

    def admit(self, count: int) -> None:
        """Raises QueueFull if `count` more requests are more than may wait, RequestError if they always are."""
        at_once = self.ready.config.sequences if self.ready else 0
        if self.ready and count > at_once + self.queue:
            raise RequestError(
                f"{count} answers are asked for at once; at most {at_once} are computed (--sequences) while "
                f"{self.queue} wait (--queue)"
            )
        with self._lock:
            waiting = max(0, len(self._waiting) - at_once)
            if len(self._waiting) + count > at_once + self.queue:
                raise QueueFull(
                    f"{waiting} requests wait already and this one adds {count}; at most {self.queue} may wait "
                    f"for the {at_once} that are computed at once (--queue, --sequences)"
                )

    def submit(self, request: Request, deliver: Deliver) -> None:
        """`deliver` is called on the thread: Accepted, Outputs up to a finish reason; or an exception."""
        error: Exception
        with self._lock:
            if self._link is None:
                error = EngineDied(self._down)
            else:
                try:
                    self._link.send(messages.Add(request))
                    self._waiting[request.id] = deliver
                    return
                except OverflowError:
                    error = RequestError("a number in the request has more than 64 bits")
        deliver(error)

    def cancel(self, request_id: str) -> None:
        """Free what the request holds before the next step; nothing more is delivered for it."""
        with self._lock:
            if self._waiting.pop(request_id, None) is not None and self._link:
                self._link.send(messages.Cancel(request_id))

    def flush_cache(self) -> None:
        """Requests that are submitted later find no cached prefix."""
        with self._lock:
            if self._link:
                self._link.send(messages.FlushCache())

    def _run(self) -> None:
        again = True
        while again and self._stop_at is None:
            try:
                again = self._life()
            except Exception as error:
                log.exception("the engine could not be run")
                again = self._end(Died(f"{type(error).__name__}: {error}", refused=True))
        if self._stop_at is not None:
            self._end(Died("", refused=True))
        self._settled.set()

    def _life(self) -> bool:
        """One engine, from its start to its end. Whether there is to be another."""
        link = listen()
        try:
            self._host.start(link.folder)
            return self._end(self._read(link))
        finally:
            self._host.kill()
            link.close()

    def _read(self, link: Link[messages.Event]) -> Died:
        """Take events until the engine has ended."""
        ended: str | None = None
        while self._stop_at is None or time.monotonic() < self._stop_at:
            events = link.receive(POLL_SECONDS)
            for event in events:
                if (died := self._take(event, link)) is not None:
                    return died
            if events:
                self.silence = 0.0
                continue
            if ended is not None:
                return Died(ended, refused=False)
            ended = self._host.ended()  # what it said before may still be on its way
            # counted, not read off a clock: this process may have been stopped itself
            self.silence += POLL_SECONDS if self._link else 0.0
            if self.silence >= self._timeout:
                self._host.dump()
                return Died(f"no sign of life for {self._timeout:g} s (--engine-timeout)", refused=False)
        return Died("", refused=False)

    def _take(self, event: messages.Event, link: Link[messages.Event]) -> Died | None:
        match event:
            case messages.Hello(version):
                if version != messages.VERSION:
                    versions = f"{messages.VERSION} of the messages, the engine version {version}"
                    return Died(f"the server speaks version {versions}; start the server again", refused=True)
                while not (
                    link.send(messages.Welcome(), POLL_SECONDS) or self._host.ended() or self._stop_at
                ):
                    pass
            case messages.Loading(done, total):
                loading = f"the model is loading: {done >> 20} of {total >> 20} MiB"
                self._down = f"{self._before}{loading}"
            case Ready():
                with self._lock:
                    self.ready, self._link, self._down = event, link, None
                self._settled.set()
            case Accepted(id):
                with self._lock:
                    deliver = self._waiting.get(id)
                if deliver is not None:
                    deliver(event)
            case messages.Refused():
                self._refuse(event)
            case messages.Outputs(outputs):
                self._hand_over(outputs)
            case messages.Gauges():
                self.gauges = event
            case messages.Saving() if self._stop_at is not None:
                self._stop_at = max(self._stop_at, time.monotonic() + SAVE_SECONDS)
            case Died():
                return event
        return None

    def _refuse(self, refused: messages.Refused) -> None:
        with self._lock:
            deliver = self._waiting.pop(refused.id, None)
        if deliver is not None:
            fault = NextFitError(refused.message)
            deliver(fault if refused.fault else RequestError(refused.message, refused.param))

    def _hand_over(self, outputs: list[Output]) -> None:
        found = []
        with self._lock:
            for output in outputs:
                deliver = self._waiting.get(output.request_id)
                if output.finish_reason is not None:
                    self._waiting.pop(output.request_id, None)
                if deliver is not None:
                    found.append((deliver, output))
        for deliver, output in found:
            deliver(output)

    def _end(self, died: Died) -> bool:
        """Tell everybody. Whether the engine is to be started again."""
        stopping = self._stop_at is not None
        again = not (died.refused or stopping) and self._may_restart()
        if stopping:
            reason = "the server is stopping"
        else:
            reason = died.reason if died.refused else f"the engine stopped: {died.reason}"
            if again or self.ready is not None:  # otherwise `wait` tells
                log.error("%s%s", reason, "; it is started again" if again else "")
        self._before = (
            f"{reason}; it is started again, {len(self._restarts)} of {RESTARTS}: " if again else ""
        )
        self.gauges, self.silence = None, 0.0
        with self._lock:
            self._link, self._down = None, f"{self._before}the model is loading" if again else reason
            waiting, self._waiting = self._waiting, {}
        error = EngineDied(reason)
        for deliver in waiting.values():
            deliver(error)
        return again

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._restarts = [t for t in self._restarts if now - t < RESTART_SECONDS]
        if not self._restart or len(self._restarts) == RESTARTS:
            return False
        self._restarts.append(now)
        self.restarts += 1
        return True

"""The engine's side of the link: load, then carry out commands and steps until told to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nextfit.engine.request import Output, Request
from nextfit.errors import NextFitError, RequestError
from nextfit.server.link import Link, connect
from nextfit.server.messages import (
    VERSION,
    Accepted,
    Add,
    Cancel,
    Command,
    Died,
    FlushCache,
    Gauges,
    Hello,
    Loading,
    Outputs,
    Ready,
    Refused,
    Saving,
    Stop,
    Welcome,
)

log = logging.getLogger("nextfit")

WELCOME_SECONDS = 10.0
BEAT_SECONDS = 0.25  # between two signs of life, unless a step takes longer
COMPILE_SECONDS = (
    0.005  # between two looks at whether a grammar is compiled, where there is nothing else to do
)


Progress = Callable[[int, int], object]  # bytes done, bytes in all


class EngineLike(Protocol):
    """What the loop needs of `nextfit.engine.Engine`; tests drive it with a scripted one."""

    def add(self, request: Request, grammar: Any = None) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[Output]: ...
    def has_work(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Built:
    """A loaded engine."""

    engine: EngineLike
    ready: Ready
    gauges: Callable[[], Gauges]
    flush_cache: Callable[[], object] | None = None  # None: it caches no prefixes
    save_cache: Callable[[Progress], object] | None = None
    compile: Callable[[str], Future[Any]] | None = None  # grammars, from their text; None: it knows none


Build = Callable[[Progress], Built]


def run_engine(folder: Path, build: Build, welcomed: Callable[[], object]) -> int:
    """Serve the end of the link in `folder` with what `build` makes. The exit code: 0 if told to stop.

    `welcomed` is called once nothing is left in the folder, before any work.
    """
    link = connect(folder)
    try:
        link.send(Hello(VERSION))
        died = _welcomed(link, welcomed) or _serve(link, build)
        if died is not None:
            link.send(died)
        return 0 if died is None else 1
    finally:
        link.close()


def _welcomed(link: Link[Command], welcomed: Callable[[], object]) -> Died | None:
    """Wait for the server's answer; the sockets' names are no longer needed then."""
    if link.receive(WELCOME_SECONDS) != [Welcome()]:
        return Died(f"the server did not welcome the engine within {WELCOME_SECONDS} s", refused=False)
    link.unlist()
    welcomed()
    return None


def _serve(link: Link[Command], build: Build) -> Died | None:
    try:
        try:
            built = build(lambda done, total: link.send(Loading(done, total)))
        except (NextFitError, OSError) as error:
            return Died(str(error), refused=True)
        link.send(built.ready)
        _Loop(link, built).run()
        if built.save_cache is not None:
            built.save_cache(lambda done, total: link.send(Saving(done, total)))
    except Exception as error:
        log.exception("the engine stopped")
        return Died(f"{type(error).__name__}: {error}", refused=False)
    return None


class _Loop:
    """Steps while there is work; while there is none, it waits and shows that it lives."""

    def __init__(self, link: Link[Command], built: Built) -> None:
        self._link = link
        self._built, self._engine = built, built.engine
        self._told = 0.0  # when gauges were last sent
        self._compiling: dict[
            str, tuple[Request, Future[Any]]
        ] = {}  # requests whose grammar is not there yet

    def run(self) -> None:
        while True:
            idle = not self._engine.has_work()
            if idle or time.monotonic() - self._told > BEAT_SECONDS:
                self._link.send(self._built.gauges())
                self._told = time.monotonic()
            wait = COMPILE_SECONDS if self._compiling else BEAT_SECONDS
            for command in self._link.receive(wait if idle else 0):
                if isinstance(command, Stop):
                    return
                self._carry_out(command)
            self._add_compiled()
            if self._engine.has_work() and (outputs := self._engine.step()):
                self._link.send(Outputs(outputs))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Add(request):
                if request.params.grammar is None or self._built.compile is None:
                    self._add(request)
                else:
                    self._compiling[request.id] = request, self._built.compile(request.params.grammar)
            case Cancel(id):
                self._compiling.pop(id, None)
                self._engine.cancel(id)
            case FlushCache() if self._built.flush_cache is not None:
                self._built.flush_cache()

    def _add_compiled(self) -> None:
        """Add the requests whose grammars are compiled by now."""
        for request, grammar in [waiting for waiting in self._compiling.values() if waiting[1].done()]:
            del self._compiling[request.id]
            self._add(request, grammar)

    def _add(self, request: Request, grammar: Future[Any] | None = None) -> None:
        try:
            self._engine.add(request, grammar.result() if grammar else None)
        except RequestError as error:
            self._link.send(Refused(request.id, str(error), error.param, fault=False))
        except Exception as error:
            log.exception("request %s could not be added", request.id)
            what = f"the request could not be added: {type(error).__name__}: {error}"
            self._link.send(Refused(request.id, what, None, fault=True))
        else:
            self._link.send(Accepted(request.id))

"""The server's face of the engine: nobody waits on it, nobody hangs when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue

import pytest

from nextfit.engine.params import SamplingParams
from nextfit.engine.request import Output, Request
from nextfit.errors import NextFitError, RequestError
from nextfit.server.loop import Progress
from nextfit.server.messages import Accepted
from nextfit.server.worker import EngineDied, Event, Worker
from tests.server.scripted import EngineThread, ScriptedEngine, built, says, wait_for

pytestmark = pytest.mark.alone


def request(name: str, prompt: str = "a") -> Request:
    return Request(name, list(prompt.encode()), SamplingParams())


@contextmanager
def running(engine: ScriptedEngine) -> Iterator[Worker]:
    worker = Worker(EngineThread(built(engine)))
    worker.start()
    worker.wait()
    try:
        yield worker
    finally:
        worker.stop(5)
        assert not worker.busy


def events(worker: Worker, one: Request) -> list[Event]:
    """All events of a request up to its last."""
    queue: SimpleQueue[Event] = SimpleQueue()
    worker.submit(one, queue.put)
    found = []
    while True:
        found.append(queue.get(timeout=5))
        if isinstance(found[-1], Exception) or getattr(found[-1], "finish_reason", None):
            return found


def test_accepted_then_outputs() -> None:
    with running(ScriptedEngine(says("abc"), tps=2)) as worker:
        first, *outputs = events(worker, request("r"))
    assert isinstance(first, Accepted)
    assert [[s.token for s in o.tokens] for o in outputs if isinstance(o, Output)] == [[97, 98], [99]]


def test_a_refused_request_fails_alone() -> None:
    gate = threading.Event()
    with running(ScriptedEngine(says("abc"), gate=gate)) as worker:
        queue: SimpleQueue[Event] = SimpleQueue()
        worker.submit(request("good"), queue.put)
        gate.set()
        (error,) = events(worker, request("bad", "!"))
        assert isinstance(error, RequestError)
        wait_for(lambda: queue.qsize() == 5)


def test_a_fault_while_adding_fails_alone() -> None:
    class Faulty(ScriptedEngine):
        def add(self, request: Request, grammar: object = None) -> None:
            if request.id == "bad":
                raise KeyError("planted")
            super().add(request)

    with running(Faulty(says("a"))) as worker:
        (error,) = events(worker, request("bad"))
        assert type(error) is NextFitError
        assert "KeyError: 'planted'" in str(error)
        assert isinstance(events(worker, request("good"))[-1], Output)


def test_calls_return_while_a_step_runs() -> None:
    gate = threading.Event()
    with running(ScriptedEngine(says("abc"), gate=gate)) as worker:
        worker.submit(request("r"), lambda event: None)
        time.sleep(0.05)
        start = time.monotonic()
        worker.submit(request("s"), lambda event: None)
        worker.cancel("r")
        assert time.monotonic() - start < 0.05
        gate.set()


def test_cancel_takes_effect_before_the_next_step() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(says("x" * 100), gate=gate)
    got: list[Event] = []
    with running(engine) as worker:
        worker.submit(request("r"), got.append)
        wait_for(lambda: bool(engine.running))
        worker.cancel("r")
        worker.cancel("unknown")
        time.sleep(0.1)  # on its way to the engine
        gate.set()
        wait_for(lambda: not engine.running)
        steps = engine.steps
        time.sleep(0.02)
        assert engine.steps == steps <= 1
    assert engine.cancelled == ["r"]
    assert len(got) <= 2


def test_when_the_engine_dies_everybody_is_told() -> None:
    with running(ScriptedEngine(says("x" * 100), die_at=3)) as worker:
        queues: list[SimpleQueue[Event]] = [SimpleQueue() for _ in range(3)]
        for i, queue in enumerate(queues):
            worker.submit(request(f"r{i}"), queue.put)
        wait_for(lambda: worker.failure is not None)
        assert worker.failure == "the engine stopped: ZeroDivisionError: planted"
        for queue in queues:
            last = [queue.get(timeout=1) for _ in range(queue.qsize())][-1]
            assert isinstance(last, EngineDied)
        (late,) = events(worker, request("late"))
        assert isinstance(late, EngineDied)
        worker.cancel("r0")


def test_requests_that_come_while_the_engine_dies_are_told() -> None:
    """Whatever the order of submit and death is, a request gets exactly one last event."""
    for _ in range(50):
        with running(ScriptedEngine(says("x" * 100), die_at=2)) as worker:
            last: SimpleQueue[str] = SimpleQueue()

            def note(event: Event, last: SimpleQueue[str] = last) -> None:
                if isinstance(event, Exception):
                    last.put(str(event))

            for i in range(20):
                worker.submit(request(f"r{i}"), note)
            for _ in range(20):
                assert "planted" in last.get(timeout=5)
            assert last.empty()


def test_requests_handed_in_during_the_last_step_are_told() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(says("x"), gate=gate, die_at=1)
    queue: SimpleQueue[Event] = SimpleQueue()
    with running(engine) as worker:
        worker.submit(request("r"), lambda event: None)
        wait_for(lambda: bool(engine.running))
        worker.submit(request("late"), queue.put)
        gate.set()
        assert isinstance(queue.get(timeout=5), EngineDied)


def test_stop_tells_who_is_in_flight() -> None:
    engine = ScriptedEngine(says("x" * 10_000), pause=0.001)
    got: list[Event] = []
    with running(engine) as worker:
        worker.submit(request("r"), got.append)
        wait_for(lambda: engine.steps > 3)
    assert isinstance(got[-1], EngineDied)
    assert "stopping" in str(got[-1])


def test_the_cache_is_saved_behind_the_last_step_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nextfit.server.worker.SAVE_SECONDS", 0.5)
    engine, seen = ScriptedEngine(says("x" * 10_000), pause=0.001), []

    def save(progress: Progress) -> None:
        for part in range(1, 6):
            seen.append(engine.steps)
            progress(part, 5)
            time.sleep(0.2)
        seen.append(-1)

    class Noting(EngineThread):
        def kill(self) -> None:
            seen.append(-2)
            super().kill()

    worker = Worker(Noting(replace(built(engine), save_cache=save)))
    worker.start()
    worker.wait()
    worker.submit(request("r"), lambda event: None)
    wait_for(lambda: engine.steps > 3)
    worker.stop(0.4)
    assert not worker.busy
    assert seen == [engine.steps] * 5 + [-1, -2]


def test_an_idle_engine_is_not_stepped() -> None:
    engine = ScriptedEngine(says("a"))
    with running(engine) as worker:
        events(worker, request("r"))
        steps = engine.steps
        time.sleep(0.05)
        assert engine.steps == steps

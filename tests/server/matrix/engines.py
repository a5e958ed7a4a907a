"""Real engines on the trained bundled model, in float64, behind real servers; watched, and held where a test says."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from nextfit.engine.config import EngineConfig
from nextfit.engine.engine import Engine
from nextfit.engine.request import Output, Request
from nextfit.engine.sequence import Sequence
from nextfit.llm import LLM
from nextfit.models import default_path
from nextfit.server.engine_main import offer
from nextfit.server.loop import Built
from nextfit.server.service import Served, Service
from nextfit.server.worker import Worker
from tests.server.scripted import EngineThread, running, wait_for

CONTEXT = 1024
CHUNK = 28  # of the engines that compute a prompt in pieces
ALONE = EngineConfig(context=CONTEXT, sequences=1, draft=0, snapshots=0, prefill_chunk=CONTEXT)
AMONG = 3  # tokens of an answer at which a client leaves "among tokens"
SLOW = 0.02  # seconds between steps until a client's leaving has come to the engine


@dataclass
class Seen:
    """What became of one request."""

    sequence: Sequence
    pieces: list[int] = field(default_factory=list)  # tokens of its prompt that steps computed
    company: int = 99  # other requests beside it while it decoded, at the least
    cancelled: bool = False  # while it ran


class Watched:
    """An engine that notes what it does, and can be stopped where a client is to leave."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: dict[str, Seen] = {}
        self.neighbours: frozenset[str] = frozenset()
        self.held = threading.Event()
        self._go = threading.Event()
        self._phase: str | None = None
        self._count = 1

    def hold(self, phase: str, count: int) -> None:
        """Stop before the step in which one of `count` requests that are no neighbours has come so far."""
        self.held.clear()
        self._go.clear()
        self._phase, self._count = phase, count

    def go(self) -> None:
        """On, slowly until somebody is cancelled."""
        self._go.set()

    def add(self, request: Request, grammar: Any = None) -> None:
        self.engine.add(request, grammar)
        self.seen[request.id] = Seen(self.engine._sequences[request.id])

    def cancel(self, request_id: str) -> None:
        if request_id in self.engine._sequences and request_id not in self.neighbours:
            self.seen[request_id].cancelled = True
            self._phase = None
        self.engine.cancel(request_id)

    def has_work(self) -> bool:
        return self.engine.has_work()

    def step(self) -> list[Output]:
        own = [s for id, s in self.engine._sequences.items() if id not in self.neighbours]
        if self._phase is not None and len(own) == self._count and any(map(self._is_there, own)):
            self.held.set()
            self._go.wait(20)
            time.sleep(SLOW)
        before = [(s, s.decoding, s.computed) for s in self.engine._sequences.values()]
        found = self.engine.step()
        decoded = sum(decodes and s.computed > computed for s, decodes, computed in before)
        for s, decodes, computed in before:
            seen = self.seen[s.request.id]
            if s.computed > computed and decodes:
                seen.company = min(seen.company, decoded - 1)
            elif s.computed > computed:
                seen.pieces.append(s.computed - max(computed, s.cached or 0))
        return found

    def _is_there(self, s: Sequence) -> bool:
        if self._phase == "among tokens":
            return s.generated >= AMONG
        whole = self.engine.config.prefill_chunk == CONTEXT
        return not s.decoding and (whole or s.computed > (s.cached or 0))

    def idle(self) -> None:
        """Wait until nothing runs; nothing may be held then but what the prefix cache has."""
        wait_for(lambda: not self.engine.has_work(), 20)
        scheduler = self.engine.scheduler
        scheduler.check()
        assert not self.engine._sequences
        assert scheduler.slots.free == scheduler.slots.capacity
        pages = scheduler.cache.pages
        assert pages.free + pages.idle == pages.capacity


class Caller(threading.Thread):
    """A request on a connection of its own, from which the test can go away at any time."""

    def __init__(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        super().__init__(daemon=True)
        self.status, self.body, self.left = 0, b"", False
        self._path, self._content = path, json.dumps(body).encode()
        at = urlsplit(url)
        assert at.hostname is not None
        self._connection = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
        self._connection.connect()
        self.start()

    def run(self) -> None:
        try:
            self._connection.request("POST", self._path, self._content, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            self.status = answer.status
            while line := answer.readline():
                self.body += line
        except (OSError, http.client.HTTPException):
            assert self.left
        finally:
            self._connection.close()

    def leave(self) -> str:
        """Go away; what has come until then."""
        self.left = True
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self.join(20)
        return self.body.decode(errors="ignore")

    def answer(self) -> str:
        self.join(60)
        assert not self.is_alive() and self.status == 200, (self.status, self.body)
        return self.body.decode()


@dataclass
class Engines:
    """URLs and engines by (drafts, how prompts are computed); `alone` has one slot, no cache and no drafts."""

    alone: str
    urls: dict[tuple[int, str], str]
    watched: dict[tuple[int, str], Watched]
    known: dict[str, str]  # answers of `alone`

    def solo(self, path: str, body: Mapping[str, Any]) -> str:
        """The answer to a request alone, cold, whole, draft-free and not streamed."""
        plain = {k: v for k, v in body.items() if k not in ("stream", "stream_options", "draft")}
        key = path + json.dumps(plain, sort_keys=True)
        if key not in self.known:
            self.known[key] = Caller(self.alone, path, plain).answer()
        return self.known[key]


@contextmanager
def engines() -> Iterator[Engines]:
    llm = LLM(default_path().parent / "nano", dtype="float64", context=CONTEXT, draft=4)

    def load(built: Built) -> Service:
        worker = Worker(EngineThread(built))
        return Service(lambda report: Served(("nano",), 1, llm.tokenizer, llm.template, worker))

    with ExitStack() as stack:
        urls: dict[tuple[int, str], str] = {}
        watched = {}
        for drafts in (0, 4):
            for prefill, chunk in (("whole", CONTEXT), ("chunked", CHUNK)):
                limits = EngineConfig(
                    context=CONTEXT, draft=drafts, adaptive_draft=False, prefill_chunk=chunk
                )
                engine = Watched(Engine(llm.model, limits, tuple(llm.engine.ends)))
                built = replace(offer(engine.engine, llm.generation, llm.grammars), engine=engine)
                watched[drafts, prefill] = engine
                urls[drafts, prefill] = stack.enter_context(running(load(built)))
        alone = Engine(llm.model, ALONE, tuple(llm.engine.ends))
        url = stack.enter_context(running(load(offer(alone, llm.generation, llm.grammars))))
        stack.callback(llm.grammars.close)
        yield Engines(url, urls, watched, defaultdict(str))

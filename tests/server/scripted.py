"""A server without weights: an engine that emits a script, a byte-level tokenizer, a plain template.

The engine runs in a thread, behind the same messages as in its own process, or in a process (`process.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tokenizers
import uvicorn
from fastapi import FastAPI

from nextfit.config import GenerationDefaults
from nextfit.engine.request import Output, Request, Sampled, Stats
from nextfit.errors import RequestError
from nextfit.server.app import BODY_LIMIT, create_app
from nextfit.server.loop import Built, run_engine
from nextfit.server.messages import Gauges, Ready
from nextfit.server.service import Load, Served, Service
from nextfit.server.worker import QUEUE, Host, Worker
from nextfit.text import ChatTemplate, Tokenizer
from nextfit.text.gguf_tokenizer import assemble
from nextfit.text.tokenizer import byte_alphabet

CONTEXT = 256
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
    "{{ '<think></think>' if enable_thinking is defined and not enable_thinking }}"
    "{{ 'effort ' ~ reasoning_effort if reasoning_effort is defined }}"
    "{% if messages[0].content == 'refuse me' %}{{ raise_exception('No user query found.') }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Token i is byte i; then <|im_start|>, <|im_end|>."""
    special = [tokenizers.AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")]
    return Tokenizer(assemble(byte_alphabet(), [], special), {}, "test")


TOKENIZER = byte_tokenizer()
END = TOKENIZER.encode("<|im_end|>")[0]


@dataclass
class Running:
    request: Request
    left: list[int]
    sent: int = 0


@dataclass
class ScriptedEngine:
    """Emits `script` to every request, `tps` tokens a step, after `silent` steps that emit nothing.

    With `gate`, a step waits until it is set. `die_at` raises in that step; a prompt that begins with
    byte `!` is refused and one that begins with `?` fails in its first step.
    """

    script: Callable[[Request], Sequence[int]]
    tps: int = 1
    silent: int = 0
    pause: float = 0.0
    gate: threading.Event | None = None
    die_at: int | None = None
    steps: int = 0
    flushed: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def add(self, request: Request) -> None:
        if request.prompt[0] == ord("!"):
            raise RequestError(
                "max_tokens: 9 and a prompt of 250 tokens are over the context of 256", "max_tokens"
            )
        self.seen.append(request)
        self.running[request.id] = Running(request, list(self.script(request)))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.running.pop(request_id, None)

    def flush_cache(self) -> None:
        self.flushed += 1

    def has_work(self) -> bool:
        return bool(self.running)

    def gauges(self) -> Gauges:
        return Gauges(len(self.running), 0, 8 - len(self.running), 64)

    def step(self) -> list[Output]:
        if self.gate is not None:
            self.gate.wait(10)
        time.sleep(self.pause)
        self.steps += 1
        if self.steps == self.die_at:
            raise ZeroDivisionError("planted")
        if self.steps <= self.silent:
            return []
        outputs = [self._advance(running) for running in list(self.running.values())]
        for output in outputs:
            if output.finish_reason is not None:
                del self.running[output.request_id]
        return outputs

    def _advance(self, running: Running) -> Output:
        request, limit = running.request, running.request.params.max_tokens
        if request.prompt[0] == ord("?"):
            return Output(request.id, (), "error", error="the draft head gave NaN")
        new: list[Sampled] = []
        reason, stop_token = None, None
        while len(new) < self.tps and reason is None:
            token = running.left.pop(0) if running.left else END
            if token == END:
                reason, stop_token = "stop", END
                break
            top = tuple((token + i, -0.5 - i) for i in range(request.params.logprobs or 0))
            new.append(Sampled(token, -0.5 if request.params.logprobs is not None else None, top))
            running.sent += 1
            if limit is not None and running.sent == limit:
                reason = "length"
        stats = Stats(len(request.prompt), running.sent, cached_tokens=16) if reason else None
        return Output(request.id, tuple(new), reason, stop_token, None, stats)  # type: ignore[arg-type]


def says(text: str) -> Callable[[Request], list[int]]:
    return lambda request: list(text.encode())


def built(engine: ScriptedEngine, context: int = CONTEXT, sequences: int = 8) -> Built:
    defaults = GenerationDefaults((END,), temperature=0.7, top_p=0.95, top_k=20)
    return Built(engine, Ready(context, sequences, defaults), engine.gauges)


class EngineThread:
    """A `Host` whose engine the test can look into."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._thread: threading.Thread | None = None

    def start(self, folder: Path) -> None:
        self._thread = threading.Thread(target=run_engine, args=(folder, lambda progress: self._built))
        self._thread.start()

    def ended(self) -> str | None:
        return None if self._thread is None or self._thread.is_alive() else "its thread ended"

    def kill(self) -> None:
        if self._thread is not None:
            self._thread.join(20)
            assert not self._thread.is_alive()


def load(
    host: ScriptedEngine | Host,
    *,
    template: str | None = TEMPLATE,
    names: Sequence[str] = ("nano",),
    context: int = CONTEXT,
    sequences: int = 8,
    queue: int = QUEUE,
    restart: bool = False,
) -> Load:
    """What a `Service` loads; `context` and `sequences` are those of an engine that is given as such."""
    if isinstance(host, ScriptedEngine):
        host = EngineThread(built(host, context, sequences))
    return lambda report: Served(
        names=tuple(names),
        created=1,
        tokenizer=TOKENIZER,
        template=ChatTemplate(template, {}) if template else None,
        worker=Worker(host, queue, restart),
    )


class Live(uvicorn.Server):
    """A real server on a free port of 127.0.0.1, in a thread."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(app, "127.0.0.1", 0, log_level="warning", timeout_graceful_shutdown=5)
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@contextmanager
def running(service: Service, keys: Sequence[str] = (), body_limit: int = BODY_LIMIT) -> Iterator[str]:
    """The base URL of a server, once it is ready."""
    server = Live(create_app(service, keys, body_limit))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        wait_for(lambda: httpx.get(f"{server.url}/health").status_code == 200, 60)
        yield server.url
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def live(
    engine: ScriptedEngine | Host, *, keys: Sequence[str] = (), body_limit: int = BODY_LIMIT, **options: Any
) -> Iterator[str]:
    """The same for a scripted engine; `options` are those of `load`."""
    with running(Service(load(engine, **options)), keys, body_limit) as url:
        yield url


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)

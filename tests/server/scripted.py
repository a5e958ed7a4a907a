"""A server without weights: the scripted engine, a byte-level tokenizer, a plain template.

The engine runs in a thread, behind the same messages as in its own process, or in a process (`process.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import tokenizers
import uvicorn
from fastapi import FastAPI

from nextfit.server.app import create_app
from nextfit.server.config import HttpConfig
from nextfit.server.loop import Built, run_engine
from nextfit.server.service import Load, Served, Service
from nextfit.server.worker import ENGINE_TIMEOUT, QUEUE, Host, Worker
from nextfit.text import ChatTemplate, Tokenizer
from nextfit.text.gguf_tokenizer import assemble
from nextfit.text.tokenizer import byte_alphabet
from tests.server.engine import CONTEXT, END, ScriptedEngine, built, says

__all__ = ["CONTEXT", "END", "ScriptedEngine", "built", "says"]

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
assert TOKENIZER.encode("<|im_end|>") == [END]


HTTP = HttpConfig()


class EngineThread:
    """A `Host` whose engine the test can look into."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._thread: threading.Thread | None = None

    def start(self, folder: Path) -> None:
        self._thread = threading.Thread(
            target=run_engine, args=(folder, lambda progress: self._built, lambda: None)
        )
        self._thread.start()

    def ended(self) -> str | None:
        return None if self._thread is None or self._thread.is_alive() else "its thread ended"

    def dump(self) -> None:
        pass

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
    timeout: float = ENGINE_TIMEOUT,
) -> Load:
    """What a `Service` loads; `context` and `sequences` are those of an engine that is given as such."""
    if isinstance(host, ScriptedEngine):
        host = EngineThread(built(host, context, sequences))
    return lambda report: Served(
        names=tuple(names),
        created=1,
        tokenizer=TOKENIZER,
        template=ChatTemplate(template, {}) if template else None,
        worker=Worker(host, queue, restart, timeout),
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
def unready(service: Service) -> Iterator[str]:
    """The base URL of a server that loads."""
    server = Live(create_app(service, HTTP))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield server.url
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def running(service: Service, http: HttpConfig = HTTP) -> Iterator[str]:
    """The base URL of a server, once it is ready."""
    server = Live(create_app(service, http))
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
def live(engine: ScriptedEngine | Host, http: HttpConfig = HTTP, **options: Any) -> Iterator[str]:
    """The same for a scripted engine; `options` are those of `load`."""
    with running(Service(load(engine, **options)), http) as url:
        yield url


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)

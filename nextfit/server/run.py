"""`nextfit serve`: bind, load while /health answers, serve, drain on SIGTERM."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from nextfit.errors import ConfigError
from nextfit.server.app import create_app
from nextfit.server.config import HttpConfig
from nextfit.server.origins import is_loopback
from nextfit.server.service import Load, Service


def serve(load: Load, http: HttpConfig, say: Callable[[str], None]) -> None:
    """Serve what `load` returns until SIGTERM or Ctrl-C; returns when the last answer is out.

    Raises ConfigError when the address cannot be bound and whatever `load` raised. `say` gets what a
    person at the terminal should read.
    """
    listener = _bind(http.host, http.port)
    url = _url(http.host, listener.getsockname()[1])
    if not http.keys and not is_loopback(http.host):
        say(f"warning: {url} answers everybody who can reach it; --api-key or --api-key-file asks for a key")

    def loaded(error: Exception | None) -> None:
        if error is None:
            gc.collect()
            gc.freeze()  # what is there now stays; looking through it again stops every stream for 50 ms and more
            say(_ready(url, keyed=bool(http.keys)))
        else:
            server.should_exit = True

    service = Service(load, loaded)
    app = create_app(service, http)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=max(1, round(http.drain)))
    server = uvicorn.Server(config)
    # uvicorn drains and then raises the signal again, for which nothing is left to do
    previous = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    except SystemExit as leaving:
        if leaving.code:
            raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if service.error is not None:
        raise service.error
    if service.busy:
        # a thread inside the tokenizer's code can neither be ended nor outlive the interpreter
        sys.stdout.flush()
        os._exit(0)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error} (--host, --port)") from error
    # connections inherit it; asyncio sets it only where it made the socket, and else a token waits 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _ready(url: str, keyed: bool) -> str:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64, "stream": True}
    command = ["curl", "-N", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    key = ' -H "Authorization: Bearer $KEY"' if keyed else ""
    return f"ready at {url}; try:\n\n{shlex.join(command)}{key} -d {shlex.quote(json.dumps(body))}\n"

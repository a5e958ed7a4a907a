"""One record for every HTTP request: its id, its log line when it is over, and the count of its error.

Nothing that a client wrote enters the log but the method, the path and the id that it sent.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nextfit.server.metrics import Metrics

log = logging.getLogger("nextfit")

CLIENT_ID_LENGTH = 128
POLLED = frozenset({"/health", "/metrics"})  # by machines, every few seconds


@dataclass(slots=True)
class Record:
    """What is known of a request so far."""

    metrics: Metrics
    timeout: float | None = None  # seconds from its arrival that its answer may take
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    arrived: float = field(default_factory=time.monotonic)
    error: str | None = None  # code of the error that it was answered with, or the status as text
    notes: dict[str, Any] = field(default_factory=dict)  # for the log line

    @staticmethod
    def of(scope: Scope) -> Record:
        record: Record = scope["state"]["record"]
        return record


class Observe:
    """Puts a `Record` into the scope of every HTTP request and closes it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, timeout: float | None) -> None:
        self.app = app
        self.metrics = metrics
        self.timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record, status = Record(self.metrics, self.timeout), 0
        scope.setdefault("state", {})["record"] = record

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", record.id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception:
            status, record.error = 500, "internal"
            raise
        finally:
            if record.error is not None:
                self.metrics.errors.labels(record.error).inc()
            self._log(scope, status, record)

    def _log(self, scope: Scope, status: int, record: Record) -> None:
        fields = {
            "id": record.id,
            "client_id": dict(scope["headers"])
            .get(b"x-request-id", b"")[:CLIENT_ID_LENGTH]
            .decode("latin-1"),
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(time.monotonic() - record.arrived, 3),
            **record.notes,
            "error": record.error,
        }
        level = logging.DEBUG if scope["path"] in POLLED and status != 401 else logging.INFO
        log.log(level, "request", extra={"fields": fields})

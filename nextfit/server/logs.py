"""Log lines of both processes: time, level, what happened, then key=value pairs. Never any text of a request."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str) -> None:
    """Write what NextFit logs from `level` on to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    log = logging.getLogger("nextfit")
    log.handlers, log.propagate = [handler], False
    log.setLevel(level.upper())


class Formatter(logging.Formatter):
    """`2026-12-01T05:00:00.123Z INFO request id=4f path=/v1/models status=200`; empty values are left out."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        words = [f"{at}.{record.msecs:03.0f}Z", record.levelname, record.getMessage()]
        fields: dict[str, Any] = getattr(record, "fields", {})
        words += [f"{name}={_value(value)}" for name, value in fields.items() if value not in (None, "")]
        text = " ".join(words)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _value(value: Any) -> str:
    """As it is, or quoted where it could be taken for something else."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(c in text for c in ' "=')
    return text if plain else json.dumps(text)

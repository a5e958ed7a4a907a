"""API keys. They are asked for by a layer around the whole application, so no route that is added later is forgotten.

A browser that is refused the console asks for a name and a password: any name, and a key.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from nextfit.errors import ConfigError
from nextfit.server.errors import ApiError, response

OPEN_PATHS = frozenset({"/health"})


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Keys of `--api-key` and, one a line, of `--api-key-file`; empty lines and lines with `#` are skipped.

    Raises ConfigError on a key that no HTTP header can carry. Messages never hold a key.
    """
    keys = [("--api-key", key) for key in given]
    if file is not None:
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {file}: {error}") from error
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                keys.append((f"{file}:{number}", line.strip()))
        if len(keys) == len(given):
            raise ConfigError(f"--api-key-file {file}: holds no key")
    for where, key in keys:
        if not key or key != key.strip() or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{where}: a key is printable ASCII without spaces around it")
    return tuple(key for _, key in keys)


def _offered(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Every key that a request carries: `Authorization: Bearer KEY`, `x-api-key: KEY`, or a browser's password."""
    found = []
    for name, value in headers:
        if name == b"x-api-key":
            found.append(value)
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                found.append(key.strip())
            elif scheme.lower() == b"basic":
                with suppress(ValueError):
                    found.append(b64decode(key, validate=True).partition(b":")[2])
    return found


class RequireKey:
    """Answers 401 unless the request carries one of `keys`; without keys everybody may in."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.keys = [key.encode() for key in keys]

    def _allowed(self, scope: Scope) -> bool:
        if not self.keys or scope["path"] in OPEN_PATHS:
            return True
        # a sum, not any(): every pair is compared, so time tells nothing about which key was close
        return sum(hmac.compare_digest(key, o) for key in self.keys for o in _offered(scope["headers"])) > 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            message = "an API key is needed, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            refusal = response(ApiError(401, message, code="invalid_api_key"), scope)
            asks = (
                'Basic realm="NextFit: any name, and the API key as password"'
                if scope["path"] == "/"
                else "Bearer"
            )
            refusal.headers["WWW-Authenticate"] = asks
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

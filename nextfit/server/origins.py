"""Who may send browsers here: the names that the server is asked by, and the pages that ask it.

A page of a stranger can have its own name resolve to this machine (DNS rebinding). Its requests then bear that
name, which no server on a loopback address has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from nextfit.errors import ConfigError
from nextfit.server.errors import ApiError, response

LOOPBACK = ("localhost", "127.0.0.1", "::1")
EXPOSED = ("x-request-id", "retry-after")  # headers of answers that pages may read, too


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_hosts(given: Sequence[str], bound: str) -> tuple[str, ...]:
    """Names of `--allowed-host`; without any, those of a loopback address for a server that is `bound` to one.

    Raises ConfigError on what is no name or address.
    """
    if not given:
        return tuple(dict.fromkeys((*LOOPBACK, bound))) if is_loopback(bound) else ("*",)
    for host in given:
        name = _name(f"[{host}]" if ":" in host else host)
        if host != "*" and ("*" in host or name != host.lower()):
            raise ConfigError(f"--allowed-host {host}: expected a name or an address without port, or *")
    return tuple(host.lower() for host in given)


def read_origins(given: Sequence[str]) -> tuple[str, ...]:
    """Origins of `--cors-origin`. Raises ConfigError on what no browser sends."""
    for origin in given:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+", origin):
            raise ConfigError(
                f"--cors-origin {origin}: expected an origin such as https://chat.example, without a path, or *"
            )
    return tuple(given)


def _name(host: str) -> str | None:
    """The name in a Host header; None: there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class AllowHosts:
    """Answers 403 unless the request is for one of `hosts`."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "*" not in self.hosts:
            for host in Headers(scope=scope).getlist("host"):
                if _name(host) not in self.hosts:
                    message = f"this server is not {host!r} but {', '.join(self.hosts)} (--allowed-host)"
                    refusal = response(ApiError(403, message, code="host_not_allowed"), scope)
                    await refusal(scope, receive, send)
                    return
        await self.app(scope, receive, send)


class AllowOrigins(CORSMiddleware):
    """Tells browsers that pages of `origins` may ask. They find that out before they send a key."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=EXPOSED,
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            asks = "access-control-request-method" in headers
            if asks and origin is not None and not self.is_allowed_origin(origin):
                message = f"pages of {origin!r} may not ask here (--cors-origin)"
                refusal = response(ApiError(403, message, code="origin_not_allowed"), scope)
                await refusal(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

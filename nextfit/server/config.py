"""Where the server listens, who may ask it, and how much."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpConfig:
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    keys: tuple[str, ...] = ()  # none: everybody may ask
    hosts: tuple[str, ...] = ("*",)  # names that it is asked by; "*": any
    origins: tuple[str, ...] = ()  # whose pages may ask; "*": any
    body_limit: int = 16 << 20  # bytes
    json_depth: int = 200  # levels
    request_timeout: float | None = None  # seconds; None: as long as it takes
    drain: float = 30  # seconds that running answers may take after SIGTERM

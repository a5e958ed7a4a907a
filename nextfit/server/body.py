"""The limits on a request's body, held while it comes in: its size, and how deep its JSON is nested.

The parser takes a level of Python's stack for each level of nesting, so it must not see a body that is too deep.
"""

from __future__ import annotations

from itertools import accumulate

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nextfit.server.errors import ApiError, response

_STEPS = bytes.maketrans(b"[{]}", b"\1\1\0\0")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))


def nesting(body: bytes) -> int:
    """Levels of arrays and objects in a JSON text, counted without parsing it."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_STEPS, _OTHERS)
    outside = b"".join(bare.split(b'"')[::2])  # of strings
    return max(accumulate(map((-1, 1).__getitem__, outside), initial=0))


class LimitBody:
    """Answers 413 to a body over `size` bytes, by its declared length or by counting, and 400 to one over `depth`."""

    def __init__(self, app: ASGIApp, size: int, depth: int) -> None:
        self.app = app
        self.size = size
        self.depth = depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.size:
            await response(self._too_large(int(declared)), scope)(scope, receive, send)
            return
        pieces: list[bytes] = []
        received = 0

        async def checked() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                pieces.append(message.get("body", b""))
                received += len(pieces[-1])
                if received > self.size:
                    raise _refusal(self._too_large(received))
                if not message.get("more_body"):
                    levels = nesting(b"".join(pieces))
                    pieces.clear()
                    if levels > self.depth:
                        raise _refusal(self._too_deep(levels))
            return message

        await self.app(scope, checked, send)

    def _too_large(self, size: int) -> ApiError:
        message = f"the body has {size} bytes or more, the limit is {self.size} (--body-limit)"
        return ApiError(413, message, code="body_too_large")

    def _too_deep(self, levels: int) -> ApiError:
        message = f"the body is nested {levels} levels deep, the limit is {self.depth} (--json-depth)"
        return ApiError(400, message, code="body_too_deep")


def _refusal(error: ApiError) -> HTTPException:
    """The only kind of exception that FastAPI lets through while it reads a body."""
    refusal = HTTPException(error.status)
    refusal.__cause__ = error
    return refusal

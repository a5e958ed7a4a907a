"""Every answer that is not 2xx, in the shape of its route's API.

OpenAI's is {"error": {message, type, param, code}}, Anthropic's {"type": "error", "error": {type, message},
"request_id"}.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from nextfit.errors import NextFitError, RequestError
from nextfit.server.fields import own_name
from nextfit.server.observe import Record
from nextfit.server.worker import QueueFull

ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens")
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# official clients ask again after any of these, also for what takes as long again
_HEADERS = {429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}, 504: {"x-should-retry": "false"}}


class ApiError(Exception):
    """An answer other than 2xx. `param` is the request field at fault, `code` a word for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    if status >= 500:
        kind = "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> ApiError:
    """What a client is told about `error`; faults of ours keep their details for the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param)
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full")
    if isinstance(error, NextFitError):
        return ApiError(500, str(error), code="engine_error")
    return ApiError(500, f"internal error ({type(error).__name__}); the server's log has it", code="internal")


def response(error: ApiError, scope: Scope) -> JSONResponse:
    """The answer to the request of `scope`, noted in its record."""
    return JSONResponse(shape(error, scope), error.status, _HEADERS.get(error.status))


def shape(error: ApiError, scope: Scope) -> dict[str, Any]:
    """The body that tells of `error` in the client's own words, noted in the record of the request of `scope`."""
    record, path = Record.of(scope), scope["path"]
    record.error = error.code or str(error.status)
    message, param = str(error), error.param
    if param is not None:
        named = own_name(param, path)
        message = named + message[len(param) :] if message.startswith(param) else message
        param = named
    if path not in ANTHROPIC_PATHS:
        return error_body(error.status, message, param, error.code)
    kind = _ANTHROPIC_TYPES.get(error.status) or (
        "api_error" if error.status >= 500 else "invalid_request_error"
    )
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": record.id}


def _field(location: Sequence[int | str]) -> str | None:
    """('body', 'messages', 0, 'role') -> 'messages[0].role'; labels of union members are left out."""
    parts = [p for p in location if isinstance(p, int) or (p.isidentifier() and p not in ("body", "str"))]
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts)
    return text.lstrip(".") or None


def validation_error(errors: Sequence[Any], content_type: str) -> ApiError:
    """The most telling of pydantic's `errors` as a 400 that names the field and what was found."""
    if errors[0]["type"] == "json_invalid":
        why, where = errors[0]["ctx"]["error"], errors[0]["loc"][-1]
        return ApiError(400, f"the body is not JSON: {why} at position {where}", code="invalid_json")
    same = [e for e in errors if e["loc"][:2] == errors[0]["loc"][:2]]  # members of one union
    best = max(same, key=lambda e: len(e["loc"]))
    field = _field(best["loc"])
    if field is None:
        hint = "" if "json" in content_type else f" sent as application/json, not {content_type or 'untyped'}"
        return ApiError(400, f"the body must be a JSON object{hint}", code="invalid_json")
    if best["type"] == "missing":
        return ApiError(400, f"{field}: required field is missing", param=field, code="missing")
    reasons = dict.fromkeys(e["msg"] for e in same if _field(e["loc"]) == field)
    expected = " or ".join(reasons).replace(" or Input should be ", " or ").removeprefix("Value error, ")
    message = f"{field}: {expected}, got {reprlib.repr(best['input'])}"
    return ApiError(400, message, param=field, code="invalid_value")


def install(app: FastAPI) -> None:
    """Answer every exception that leaves a route."""

    async def on_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response(
            validation_error(error.errors(), request.headers.get("content-type", "")), request.scope
        )

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, ApiError):
            return response(error.__cause__, request.scope)
        message, code = str(error.detail), None
        if error.status_code == 404:
            message, code = f"no route {request.url.path}", "not_found"
        elif error.status_code == 405:
            message, code = f"{request.url.path} does not answer {request.method}", "method_not_allowed"
        elif not error.detail:
            message = HTTPStatus(error.status_code).phrase
        answer = response(ApiError(error.status_code, message, code=code), request.scope)
        answer.headers.update(error.headers or {})
        return answer

    async def on_any(request: Request, error: Exception) -> JSONResponse:
        return response(describe(error), request.scope)

    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ApiError, on_any)
    app.add_exception_handler(NextFitError, on_any)
    app.add_exception_handler(Exception, on_any)

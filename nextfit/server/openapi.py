"""The OpenAPI file: what each route answers, refusals included, and how it wants its key."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from nextfit.server.answers import OpenAIError
from nextfit.server.guard import OPEN_PATHS

Responses = dict[int | str, dict[str, Any]]
_WHEN = {
    400: "The body is not what the route takes, or the engine or the template refuses it",
    401: "No key that is right",
    403: "For another server, or from a page that may not ask",
    404: "The model is not served here",
    413: "The body is too large",
    429: "Too many requests wait",
    500: "A fault of the server",
    503: "The model is not ready, or the server is stopping",
    504: "The answer took longer than the server gives it",
}
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def refusals(*statuses: int, error: type[BaseModel] = OpenAIError) -> Responses:
    """Those `statuses`, and those that every route may answer, as errors of one API."""
    return {status: {"model": error, "description": _WHEN[status]} for status in (*statuses, 401, 403, 500)}


def of_body(error: type[BaseModel] = OpenAIError) -> Responses:
    """What a route that takes a body for the model refuses."""
    return refusals(400, 404, 413, 503, error=error)


def of_answer(whole: type[BaseModel], error: type[BaseModel] = OpenAIError) -> Responses:
    """An answer of the model: whole, or with `stream` as events; and what may be refused."""
    return {
        200: {
            "model": whole,
            "content": {"text/event-stream": {"itemSchema": _EVENT}},
            "description": "The answer, with `stream` as events",
        },
        **of_body(error),
        **refusals(429, 504, error=error),
    }


def describe(app: FastAPI, keyed: bool) -> None:
    """Have the file of `app` say that no route answers 422, and which ask for a key where the server is `keyed`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _file(app, keyed)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _file(app: FastAPI, keyed: bool) -> dict[str, Any]:
    file = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, operations in file["paths"].items():
        for operation in operations.values():
            # FastAPI takes it for granted; a wrong field is 400 here
            operation["responses"].pop("422", None)
            if keyed and path not in OPEN_PATHS:
                operation["security"] = [{name: []} for name in _SCHEMES]
            else:
                operation["responses"].pop("401", None)
    for name in ("HTTPValidationError", "ValidationError"):
        file["components"]["schemas"].pop(name, None)
    if keyed:
        file["components"]["securitySchemes"] = _SCHEMES
    return file

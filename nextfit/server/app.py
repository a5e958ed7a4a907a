"""The application: routes, what stands before them, and start and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

import nextfit
from nextfit.server import answers, anthropic, chat, completions, errors, openapi, responses, status, tokens
from nextfit.server.body import LimitBody
from nextfit.server.config import HttpConfig
from nextfit.server.errors import ApiError
from nextfit.server.guard import RequireKey
from nextfit.server.observe import Observe
from nextfit.server.origins import AllowHosts, AllowOrigins
from nextfit.server.service import Served, Service
from nextfit.server.stream import Disconnected

STEP_SECONDS = 10.0  # waited for the engine's last step when the server ends


def create_app(service: Service, http: HttpConfig) -> FastAPI:
    """`service` begins to load when the application starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop, STEP_SECONDS)

    app = FastAPI(title="NextFit", version=nextfit.__version__, lifespan=lifespan, redirect_slashes=False)
    # the one added last is the outermost
    app.add_middleware(LimitBody, size=http.body_limit, depth=http.json_depth)
    app.add_middleware(RequireKey, keys=http.keys)
    if http.origins:
        app.add_middleware(AllowOrigins, origins=http.origins)
    app.add_middleware(AllowHosts, hosts=http.hosts)
    app.add_middleware(Observe, metrics=service.metrics, timeout=http.request_timeout)
    errors.install(app)
    openapi.describe(app, keyed=bool(http.keys))

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # for the log; nobody receives it

    app.add_exception_handler(Disconnected, on_disconnect)

    @app.get("/v1/models", response_model=answers.Models, responses=openapi.refusals(503))
    async def models() -> dict[str, Any]:
        served = service.served()
        return {"object": "list", "data": [_model(served, name) for name in served.names]}

    @app.get("/v1/models/{name:path}", response_model=answers.Model, responses=openapi.refusals(404, 503))
    async def model(name: str) -> dict[str, Any]:
        served = service.served()
        if name not in served.names:
            raise ApiError(404, f"model {name!r} is not served here", param="model", code="model_not_found")
        return _model(served, name)

    app.include_router(status.router(service))
    app.include_router(chat.router(service))
    app.include_router(anthropic.router(service))
    app.include_router(completions.router(service))
    app.include_router(responses.router(service))
    app.include_router(tokens.router(service))
    return app


def _model(served: Served, name: str) -> dict[str, Any]:
    entry = {"id": name, "object": "model", "created": served.created, "owned_by": "nextfit"}
    chats = served.template is not None
    capabilities = {"completion": True, "chat": chats, "tools": chats, "thinking": chats, "vision": False}
    return entry | {"root": served.names[0], "max_model_len": served.context, "capabilities": capabilities}

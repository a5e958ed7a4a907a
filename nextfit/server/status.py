"""What the server tells of itself: whether it serves, what it serves, and how busy it is."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import iter_route_contexts
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

import nextfit
from nextfit.server import answers
from nextfit.server.errors import error_body
from nextfit.server.guard import OPEN_PATHS
from nextfit.server.openapi import refusals
from nextfit.server.service import Served, Service

CONSOLE = Path(__file__).with_name("console.html")
POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {"model": answers.Unavailable, "description": "Loading, or the engine stopped; the error says why"}
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health", response_model=answers.Status, responses=refusals() | _UNAVAILABLE)
    async def health() -> JSONResponse:
        reason = service.unready
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable", **error_body(503, reason, code="not_ready")}, 503)

    @routes.get("/", include_in_schema=False)
    async def console() -> Response:
        """One page without anything from elsewhere: a chat, and what the server is doing."""
        return FileResponse(CONSOLE, headers={"Content-Security-Policy": POLICY})

    @routes.get("/metrics", response_class=PlainTextResponse, responses=refusals())
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @routes.get("/server_info", response_model=answers.ServerInfo, responses=refusals(503))
    async def server_info() -> dict[str, Any]:
        served = service.served()
        ready, limits = served.ready, served.ready.config
        return {
            "version": nextfit.__version__,
            "names": served.names,
            "model": served.model,
            "limits": {**asdict(limits), "kv_pages": limits.pages(), "queue": served.worker.queue},
            "sampling_defaults": asdict(served.defaults),
            "device": ready.device,
            "dtype": ready.dtype,
        }

    @routes.get("/debug/routes", response_model=answers.Routes, responses=refusals())
    async def table(request: Request) -> dict[str, Any]:
        """What can be asked (`open`: without a key, also where keys are needed), and how operators compute."""
        found = [
            {"path": route.path, "methods": sorted(route.methods or ()), "open": route.path in OPEN_PATHS}
            for route in iter_route_contexts(request.app.routes)
        ]
        return {"routes": found, "operators": [asdict(choice) for choice in service.operators]}

    @routes.get("/v1/loads", response_model=answers.Loads, responses=refusals(503))
    async def loads() -> dict[str, Any]:
        return load(service.served())

    @routes.post("/flush_cache", response_model=answers.Status, responses=refusals(503))
    async def flush_cache() -> dict[str, str]:
        service.served().worker.flush_cache()
        return {"status": "ok"}

    return routes


def load(served: Served) -> dict[str, Any]:
    """How busy the engine is, in the shape that SGLang's gateway polls."""
    worker, limits = served.worker, served.ready.config
    gauges = worker.gauges
    running, used = (gauges.running, gauges.pages * limits.page_size) if gauges else (0, 0)
    waiting, total = max(0, worker.in_flight - running), limits.pages() * limits.page_size
    one = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_used_tokens": used,
        "max_total_num_tokens": total,
        "token_usage": used / total,
        "utilization": running / limits.sequences,
        "max_running_requests": limits.sequences,
    }
    aggregate = {
        "total_running_reqs": running,
        "total_waiting_reqs": waiting,
        "total_reqs": running + waiting,
        "total_used_tokens": used,
        "total_tokens": total,
        "avg_token_usage": used / total,
        "avg_utilization": running / limits.sequences,
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": nextfit.__version__,
        "dp_rank_count": 1,
        "loads": [one],
        "aggregate": aggregate,
    }

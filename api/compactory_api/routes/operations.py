"""Routes for operators: probes, metrics, directories, status."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from compactory.store_worker import StoreWorker

from ..http.models import Directories, Readiness, Status
from ..http.openapi import OPEN, problems
from ..http.threads import ThreadGroup
from ..ops.health import Health
from ..ops.metrics import Exposition

__all__ = ["operation_routes"]

_PLAIN = {"text/plain": {"schema": {"type": "string"}}}


def operation_routes(worker: StoreWorker, health: Health, exposition: Exposition, threads: ThreadGroup) -> APIRouter:
    """Return the routes. Metrics are gathered in the ``threads``."""
    routes = APIRouter()

    @routes.get(
        "/livez",
        tags=["probes"],
        operation_id="get_liveness",
        summary="Whether the process should go on running",
        responses={503: {"description": "A part died; restart the process"}},
        openapi_extra=OPEN,
    )
    async def livez() -> Response:
        return _json(*health.liveness())

    @routes.get(
        "/readyz",
        tags=["probes"],
        operation_id="get_readiness",
        summary="Whether lookups are answered",
        responses={200: {"model": Readiness}, 503: {"model": Readiness, "description": "Not yet, or not any more"}},
        openapi_extra=OPEN,
    )
    async def readyz() -> Response:
        return _json(*health.readiness())

    @routes.get(
        "/metrics",
        tags=["operations"],
        operation_id="get_metrics",
        summary="Figures for Prometheus",
        responses={200: {"content": _PLAIN, "description": "Prometheus text format, or OpenMetrics if asked for"}},
        openapi_extra=OPEN,
    )
    async def metrics(request: Request) -> Response:
        text, content_type = await threads.run(exposition.render, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    @routes.get(
        "/v1/directories",
        tags=["operations"],
        operation_id="list_directories",
        summary="Every directory and how it is",
        responses={200: {"model": Directories}, **problems(401, 421)},
    )
    async def directories() -> Response:
        return _json(200, {"directories": worker.directories()})

    @routes.get(
        "/v1/status",
        tags=["operations"],
        operation_id="get_status",
        summary="The state of every part of the process",
        responses={200: {"model": Status}, **problems(401, 421)},
    )
    async def status() -> Response:
        return _json(200, health.status())

    return routes


def _json(status: int, document: dict[str, Any]) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(orjson.dumps(document), status_code=status, media_type="application/json", headers=headers)

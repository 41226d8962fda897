"""Routes for operators: probes, metrics, directories, status."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from compactory.errors import UnknownDirectory
from compactory.store_worker import StoreWorker

from ..http.limits import ThreadGroup
from ..http.models import Directories, DirectoryState, Readiness, Status
from ..http.openapi import OPEN, problems
from ..http.response import json_response
from ..ops.health import Health
from ..ops.metrics import Exposition

__all__ = ["operation_routes"]

_PLAIN = {"text/plain": {"schema": {"type": "string"}}}


def operation_routes(worker: StoreWorker, health: Health, exposition: Exposition, threads: ThreadGroup) -> APIRouter:
    """Return the routes. They collect metrics in the ``threads``."""
    routes = APIRouter()

    @routes.get(
        "/livez",
        tags=["probes"],
        operation_id="get_liveness",
        summary="Liveness: 200 while the process works, 503 if it has to be restarted",
        responses={503: {"description": "A part died; restart the process"}},
        openapi_extra=OPEN,
    )
    async def livez() -> Response:
        status, document = health.liveness()
        return json_response(document, status)

    @routes.get(
        "/readyz",
        tags=["probes"],
        operation_id="get_readiness",
        summary="Readiness: 200 while lookups are answered",
        responses={200: {"model": Readiness}, 503: {"model": Readiness, "description": "Not yet, or not any more"}},
        openapi_extra=OPEN,
    )
    async def readyz() -> Response:
        status, document = health.readiness()
        return json_response(document, status)

    @routes.get(
        "/metrics",
        tags=["operations"],
        operation_id="get_metrics",
        summary="Metrics for Prometheus",
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
        summary="All directories, with their states",
        responses={200: {"model": Directories}, **problems(401, 421)},
    )
    async def directories() -> Response:
        return json_response({"directories": worker.directories()})

    @routes.get(
        "/v1/directories/{directory}",
        tags=["operations"],
        operation_id="get_directory",
        summary="One directory, with its state as in the list of all",
        responses={200: {"model": DirectoryState}, **problems(401, 403, 404, 421)},
    )
    async def directory_state(directory: str) -> Response:
        states = {state["name"]: state for state in worker.directories()}
        if directory not in states:
            raise UnknownDirectory(f"there is no directory {directory!r}; there are: {', '.join(states)}")
        return json_response(states[directory])

    @routes.get(
        "/v1/status",
        tags=["operations"],
        operation_id="get_status",
        summary="The states of all workers of the process",
        responses={200: {"model": Status}, **problems(401, 421)},
    )
    async def status() -> Response:
        return json_response(health.status())

    return routes

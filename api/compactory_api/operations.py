"""Routes for those who run it: probes, metrics, directories, status, bad records."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from compactory.records import RecordError
from compactory.store import GlobalStore
from compactory.store_worker import StoreWorker

from .access import Scope
from .document import Directories, Errors, Readiness, Status
from .health import Health
from .metrics import Exposition
from .openapi import OPEN, problems

__all__ = ["SCOPE", "operation_routes"]

SCOPE = "compactory.scope"  # where the ASGI scope says what the request may see
_MOST_ERRORS = 1000
_PLAIN = {"text/plain": {"schema": {"type": "string"}}}


def operation_routes(store: GlobalStore, worker: StoreWorker, health: Health, exposition: Exposition) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()

    @routes.get(
        "/livez",
        tags=["probes"],
        summary="Whether the process should go on running",
        responses={503: {"description": "A part died; restart the process"}},
        openapi_extra=OPEN,
    )
    async def livez() -> Response:
        return _json(*health.liveness())

    @routes.get(
        "/readyz",
        tags=["probes"],
        summary="Whether lookups are answered",
        responses={200: {"model": Readiness}, 503: {"model": Readiness, "description": "Not yet, or not any more"}},
        openapi_extra=OPEN,
    )
    async def readyz() -> Response:
        return _json(*health.readiness())

    @routes.get(
        "/metrics",
        tags=["operations"],
        summary="Figures for Prometheus",
        responses={200: {"content": _PLAIN, "description": "Prometheus text format, or OpenMetrics if asked for"}},
        openapi_extra=OPEN,
    )
    async def metrics(request: Request) -> Response:
        text, content_type = await asyncio.to_thread(exposition.render, request.headers.get("accept", ""))
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
        summary="What every part of the process does",
        responses={200: {"model": Status}, **problems(401, 421)},
    )
    async def status() -> Response:
        return _json(200, health.status())

    @routes.get(
        "/v1/errors",
        tags=["operations"],
        operation_id="list_errors",
        summary="Outstanding bad records; their bytes only for the admin token",
        responses={200: {"model": Errors}, **problems(400, 401, 421)},
    )
    async def errors(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=_MOST_ERRORS, description="Newest of each directory first")] = 100,
    ) -> Response:
        whole = request.scope.get(SCOPE) is Scope.ADMIN
        found = sorted(store.errors(), key=lambda error: error.timestamp_ms, reverse=True)
        shown = [_described(error, whole=whole) for error in found[:limit]]
        return _json(200, {"errors": shown, "outstanding": len(found)})

    return routes


def _json(status: int, document: dict[str, Any]) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(orjson.dumps(document), status_code=status, media_type="application/json", headers=headers)


def _described(error: RecordError, *, whole: bool) -> dict[str, Any]:
    """Describe a bad record. The text of an error can quote the value, so it is for the admin scope only."""
    place = {
        "topic": error.topic,
        "partition": error.partition,
        "offset": error.offset,
        "timestamp_ms": error.timestamp_ms,
    }
    if not whole:
        return {**place, "error": error.error.partition(":")[0]}
    return {
        **place,
        "error": error.error,
        "stacktrace": error.stacktrace,
        "key_base64": _base64(error.key),
        "value_base64": _base64(error.value),
    }


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()

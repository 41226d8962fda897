"""Routes to bad records: list, retry, skip."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from compactory.errors import NotReady, WaitTimeout
from compactory.records import QuarantinedRecord
from compactory.store import GlobalStore

from ..http.access import GRANT, Scope
from ..http.limits import ThreadGroup
from ..http.models import Errors, RecordIds, Resolved
from ..http.openapi import problems, reference_to
from ..http.problem import Forbidden
from ..http.request import parse_body, read_body
from ..http.response import json_response

__all__ = ["error_routes"]

_MOST_ERRORS = 1000
_NOT_ADMIN = "this needs the admin token: set COMPACTORY_HTTP_ADMIN_TOKEN for the server and for the caller"
_MOST_BYTES = 1 << 20  # of a request body
_BODY = {"requestBody": {"content": {"application/json": {"schema": reference_to(RecordIds)}}}}

Resolve = Callable[..., list[QuarantinedRecord]]
"""Retries or skips bad records, and returns those that are still bad."""


def error_routes(store: GlobalStore, threads: ThreadGroup) -> APIRouter:
    """Return the routes. They wait for the store's reader thread in the ``threads``.

    They raise the errors of `problem`'s table.
    """
    routes = APIRouter(tags=["operations"])

    @routes.get(
        "/v1/errors",
        operation_id="list_errors",
        summary="Outstanding bad records; their bytes only for the admin token",
        responses={200: {"model": Errors}, **problems(400, 401, 421)},
    )
    async def errors(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=_MOST_ERRORS, description="Newest of each directory first")] = 100,
    ) -> Response:
        scope = request.scope[GRANT].on
        outstanding = [error for error in store.quarantine() if scope(error.directory) >= Scope.READ]
        outstanding.sort(key=lambda error: error.timestamp_ms, reverse=True)
        newest = outstanding[:limit]
        documents = [_record_document(error, with_bytes=scope(error.directory) is Scope.ADMIN) for error in newest]
        return json_response({"errors": documents, "outstanding": len(outstanding)})

    for name, resolve, summary in (
        ("retry", store.retry, "Apply bad records again; needs the admin token"),
        ("skip", store.skip, "Drop bad records, as if they had never come; needs the admin token"),
    ):
        routes.add_api_route(
            f"/v1/errors:{name}",
            _resolution(store, resolve, threads),
            methods=["POST"],
            operation_id=f"{name}_errors",
            summary=summary,
            responses={200: {"model": Resolved}, **problems(400, 401, 403, 421, 503)},
            openapi_extra=_BODY,
        )
    return routes


def _resolution(store: GlobalStore, resolve: Resolve, threads: ThreadGroup) -> Callable[..., Any]:
    """Return the endpoint that resolves the bad records in its body; without a body, all of them."""

    async def answer(request: Request) -> Response:
        grant = request.scope[GRANT]
        names = {directory.name for directory in store.directories}
        administered = {name for name in names if grant.on(name) is Scope.ADMIN}
        if not administered:
            raise Forbidden(_NOT_ADMIN)
        body = await read_body(request.scope, request.receive, _MOST_BYTES)
        requested = parse_body(RecordIds, body).errors if body else []
        if any(record.directory in names - administered for record in requested):
            raise Forbidden(_NOT_ADMIN)
        ids = {(record.directory, record.partition, record.offset) for record in requested}
        records = [
            record
            for record in store.quarantine()
            if record.directory in administered
            and (not body or (record.directory, record.partition, record.offset) in ids)
        ]
        try:
            still_bad = await threads.run(resolve, *records) if records else []
        except WaitTimeout as error:  # the reader thread is busy: no answer to a precondition of the request
            raise NotReady(str(error)) from None
        return json_response({"done": len(records) - len(still_bad), "outstanding": sum(store.outstanding().values())})

    return answer


def _record_document(error: QuarantinedRecord, *, with_bytes: bool) -> dict[str, Any]:
    """Return the document of a bad record. An error can quote the value, so its text needs the admin scope."""
    document = {
        "directory": error.directory,
        "topic": error.topic,
        "partition": error.partition,
        "offset": error.offset,
        "timestamp_ms": error.timestamp_ms,
    }
    if not with_bytes:
        return {**document, "error": error.error.partition(":")[0]}
    return {
        **document,
        "error": error.error,
        "stacktrace": error.stacktrace,
        "key_base64": _base64_or_none(error.key),
        "value_base64": _base64_or_none(error.value),
    }


def _base64_or_none(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()

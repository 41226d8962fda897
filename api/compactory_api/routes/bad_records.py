"""Routes to bad records: list, retry, skip."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from compactory.errors import NotReady, WaitTimeout
from compactory.records import QuarantinedRecord
from compactory.store import GlobalStore

from ..http.access import GRANT, Scope
from ..http.body import read_body
from ..http.errors import BadRequest, Forbidden
from ..http.models import Dealt, Errors, RecordPlaces
from ..http.openapi import problems, reference_to
from ..http.threads import ThreadGroup

__all__ = ["error_routes"]

_MOST_ERRORS = 1000
_MOST_BYTES = 1 << 20  # of a request body
_BODY = {"requestBody": {"content": {"application/json": {"schema": reference_to(RecordPlaces)}}}}

Deal = Callable[..., list[QuarantinedRecord]]


def error_routes(store: GlobalStore, threads: ThreadGroup) -> APIRouter:
    """Return the routes. They wait for the store's reader in the ``threads``.

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
        shown = [_described(error, whole=scope(error.directory) is Scope.ADMIN) for error in outstanding[:limit]]
        return _json({"errors": shown, "outstanding": len(outstanding)})

    @routes.post(
        "/v1/errors:retry",
        operation_id="retry_errors",
        summary="Apply bad records again; needs the admin token",
        responses={200: {"model": Dealt}, **problems(400, 401, 403, 421, 503)},
        openapi_extra=_BODY,
    )
    async def retry(request: Request) -> Response:
        return _json(await _deal(store, request, store.retry, threads))

    @routes.post(
        "/v1/errors:skip",
        operation_id="skip_errors",
        summary="Drop bad records, as if they had never come; needs the admin token",
        responses={200: {"model": Dealt}, **problems(400, 401, 403, 421, 503)},
        openapi_extra=_BODY,
    )
    async def skip(request: Request) -> Response:
        return _json(await _deal(store, request, store.skip, threads))

    return routes


async def _deal(store: GlobalStore, request: Request, deal: Deal, threads: ThreadGroup) -> dict[str, Any]:
    grant, names = request.scope[GRANT], {directory.name for directory in store.directories}
    administered = {name for name in names if grant.on(name) is Scope.ADMIN}
    places = _chosen(await read_body(request.scope, request.receive, _MOST_BYTES)) if administered else None
    if not administered or any(place[0] in names - administered for place in places or ()):
        raise Forbidden("this needs the admin token: set COMPACTORY_HTTP_ADMIN_TOKEN for the server and for the caller")
    chosen = [
        error
        for error in store.quarantine()
        if error.directory in administered
        and (places is None or (error.directory, error.partition, error.offset) in places)
    ]
    try:
        still_bad = await threads.run(deal, *chosen) if chosen else []
    except WaitTimeout as error:  # the reader is at something else for long: nothing that a precondition is about
        raise NotReady(str(error)) from None
    return {"done": len(chosen) - len(still_bad), "outstanding": sum(store.outstanding().values())}


def _chosen(body: bytes) -> set[tuple[str, int, int]] | None:
    """Return the places named in a body; None for all."""
    if not body:
        return None
    try:
        places = RecordPlaces.model_validate_json(body).errors
    except ValidationError as error:
        raise BadRequest(
            [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        ) from None
    return {(place.directory, place.partition, place.offset) for place in places}


def _json(document: dict[str, Any]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json", headers={"cache-control": "no-store"})


def _described(error: QuarantinedRecord, *, whole: bool) -> dict[str, Any]:
    """Describe a bad record. The text of an error can quote the value, so it is for the admin scope only."""
    place = {
        "directory": error.directory,
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

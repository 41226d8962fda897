"""The routes that write entries of directories mastered in Kafka."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from compactory.write.operation import Kind

from ..http.models import StoredCursor, WriteAnswer, WriteBatch, WriteBatchAnswer, WriteLine
from ..http.openapi import KEY, parameter, problems, reference_to, text
from ..http.request import ENTRIES, decode_segment, raw_path
from .forwarding import StreamedAnswer
from .write_request import JSON, MEDIA_TYPES, NDJSON
from .writes import Writes

__all__ = ["write_routes"]

_BULK_REFUSALS = problems(400, 401, 403, 404, 405, 409, 412, 413, 415, 421, 422, 503)
_REFUSALS = _BULK_REFUSALS | problems(424)
_HEADERS = {
    "ETag": text("Of the new record"),
    "Compactory-Offset": text("topic:partition:offset of the record: a read sends it as Compactory-Min-Offset"),
}
_STORED_HEADERS = _HEADERS | {
    "Location": text("The path of a new entry"),
    "Compactory-Status": text("Where processors finish the write: the path that shows its outcome"),
    "Compactory-Outcome": text("The directory that has the outcome, where one came in time"),
}
_STORED = {"description": "Written", "headers": _STORED_HEADERS, "content": {JSON: {"schema": {}}}}
_RESPONSES: dict[int, dict[str, Any]] = {
    200: _STORED,
    201: _STORED,
    202: _STORED | {"description": "Written; processors have not finished it yet"},
    204: {"description": "Written", "headers": _HEADERS},
}
_IDEMPOTENCY_KEY = parameter("Idempotency-Key", "A repeat with the same key gets the first answer")
_PARAMETERS = [
    parameter("If-Match", "ETags; the entry must have one of them, * for any"),
    parameter("If-None-Match", "*: the entry must not exist"),
    _IDEMPOTENCY_KEY,
    parameter("Prefer", "wait=SECONDS: for the outcome, where processors finish the write"),
]


def write_routes(writes: Writes) -> APIRouter:
    """Return the routes, which raise the errors in the table of `problem`.

    `Application` answers most keyed writes itself.
    """
    routes = APIRouter(prefix="/v1/directories/{directory}", tags=["writes"])

    def route(kind: Kind, summary: str, *statuses: int) -> None:
        is_keyed = kind != "post"
        content = {media_type: {"schema": {"type": "object"}} for media_type in MEDIA_TYPES[kind]}

        async def endpoint(directory: str, request: Request) -> Response:
            key = decode_segment(raw_path(request.scope).partition(ENTRIES)[2]) if is_keyed else None
            return _response(await writes.single(kind, directory, key, request.scope, request.receive))

        openapi: dict[str, Any] = {"parameters": [*_PARAMETERS, KEY] if is_keyed else _PARAMETERS}
        if content:
            openapi["requestBody"] = {"required": True, "content": content}
        routes.add_api_route(
            "/entries/{key:path}" if is_keyed else "/entries",
            endpoint,
            methods=[kind.upper()],
            operation_id=f"{kind}_entry",
            summary=summary,
            status_code=statuses[0],
            responses={**{status: _RESPONSES[status] for status in statuses}, **_REFUSALS},
            openapi_extra=openapi,
            response_class=Response,
        )

    route("put", "Create or replace an entry", 200, 201, 202)
    route("patch", "Merge a patch into an entry (RFC 7396)", 200, 201, 202)
    route("delete", "Remove an entry", 204)
    route("post", "Create an entry whose key is derived from its fields", 201, 202)

    @routes.post(
        "/entries:bulkWrite",
        operation_id="bulk_write_entries",
        summary="Write many entries, one in each line; each line has its own result, in order",
        responses={
            200: {
                "content": {NDJSON: {"schema": reference_to(WriteAnswer)}},
                "description": "A result for each line",
            },
            **_BULK_REFUSALS,
        },
        openapi_extra={"requestBody": {"required": True, "content": {NDJSON: {"schema": reference_to(WriteLine)}}}},
        response_class=Response,
    )
    async def bulk(directory: str, request: Request) -> Response:
        return _response(await writes.bulk(directory, request.scope, request.receive))

    @routes.post(
        "/entries:batchWrite",
        operation_id="batch_write_entries",
        summary="Write up to 100 entries, all or none, and the writer's cursor with them",
        responses={
            200: {
                "model": WriteBatchAnswer,
                "description": "All are written",
                "headers": {"Compactory-Offset": text("The last record in each partition, for Compactory-Min-Offset")},
            },
            **_BULK_REFUSALS,
        },
        openapi_extra={
            "parameters": [_IDEMPOTENCY_KEY],
            "requestBody": {"required": True, "content": {JSON: {"schema": reference_to(WriteBatch)}}},
        },
        response_class=Response,
    )
    async def batch(directory: str, request: Request) -> Response:
        return _response(await writes.batch(directory, request.scope, request.receive))

    @routes.get(
        "/cursors/{name}",
        operation_id="get_cursor",
        summary="Show the cursor that a writer has stored with its last batch",
        responses={200: {"model": StoredCursor}, **problems(400, 401, 403, 404, 421, 422, 503)},
    )
    async def cursor(directory: str, name: str, request: Request) -> Response:
        body = orjson.dumps({"name": name, "cursor": writes.cursor(directory, name, request.scope)})
        return Response(body, media_type=JSON, headers={"cache-control": "no-store"})

    return routes


def _response(answer: StreamedAnswer) -> Response:
    status, headers, body = answer
    if not isinstance(body, bytes):
        return StreamingResponse(body, status, headers)  # stops after the client has disconnected
    return Response(None if status == 204 else body, status, headers)

"""Routes that write entries of directories mastered in Kafka, here or at the server that owns the directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Request, Response

from compactory.errors import CompactoryError, LeaseLost, NotReady, WriteFailed
from compactory.mastered.operation import Kind, Operation, Written
from compactory.mastered.writer import MasteredWriter, start_writers
from compactory.store import GlobalStore

from ..protocol.access import Scope
from ..protocol.document import WriteAnswer, WriteLine
from ..protocol.http_errors import Forbidden, MethodRefused, TooLarge
from ..protocol.openapi import problems, schema_of
from ..protocol.path import ENTRIES, decode_segment, raw_path
from ..protocol.problem import problem
from ..protocol.write_request import MERGE_PATCH, NDJSON, check_media, line_operation, operation_of, value_of
from .bad_records import SCOPE
from .forwarding import FORWARDED, OWNER, Forwarding, OwnerSilent, OwnerUnreached
from .outcomes import Outcomes

__all__ = ["Writes", "write_routes"]

audit = logging.getLogger("compactory.audit")

Local = Callable[[bool], Awaitable[Response]]

_JSON = "application/json"
_MOST_BYTES = 1 << 20  # of one value
_MOST_LINES = 2000  # of a bulk write that are in one transaction
_PATIENCE = 10.0  # seconds in which the owner must be found
_LOOK = 0.02  # seconds between two looks
_REFUSALS = problems(400, 401, 403, 404, 405, 409, 412, 413, 415, 421, 422, 503)
_HEADERS = {"ETag": {"schema": {"type": "string"}}, "Compactory-Offset": {"schema": {"type": "string"}}}


class Writes:
    """The writers of a server's directories. ``url`` is the server's own address, set before `start`."""

    def __init__(self, store: GlobalStore) -> None:
        self.url: str | None = None
        self._store = store
        self.started = False
        self._writers: dict[str, MasteredWriter] = {}
        self._gone: dict[str, str | None] = {}  # directory → address of an owner that does not answer
        self._forwarding = Forwarding()

    def start(self) -> None:
        """Check rules and topics, then take writes; once the store is ready. Raises ConfigError, Unreachable."""
        mastered = [directory for directory in self._store.directories if directory.rules is not None]
        writers = {directory.name: MasteredWriter(self._store, directory, url=self.url) for directory in mastered}
        start_writers(list(writers.values()))
        self._writers, self.started = writers, True

    def close(self) -> None:
        """Answer what is under way and end."""
        self._forwarding.close()
        for writer in self._writers.values():
            writer.close()

    def writer(self, name: str, request: Request) -> MasteredWriter:
        """Return the writer of a directory. Raises UnknownDirectory, Forbidden, MethodRefused, NotReady."""
        directory = self._store[name].directory
        if directory.rules is None:
            hint = f"Directory {name!r} is not mastered in Kafka: change the row of its table in Postgres instead"
            raise MethodRefused(request.method, "GET, HEAD", hint)
        if request.scope.get(SCOPE, Scope.READ) < Scope.WRITE:
            raise Forbidden("writing needs the write token")
        if name not in self._writers:
            raise NotReady("the store is loading: writes are taken once it has read to the high watermark")
        return self._writers[name]

    async def answer(
        self, writer: MasteredWriter, request: Request, body: bytes, local: Local, *, repeatable: bool
    ) -> Response:
        """Return the answer of the directory's owner: this server's own, or the one of another server.

        A server whose owner does not answer becomes the owner: its fence lets the other one write nothing more. It
        sends a ``repeatable`` request again; of another one that was sent the outcome is unknown (WriteFailed).
        """
        if FORWARDED not in request.headers:
            return await self._found(writer, request, body, local, repeatable)
        try:
            response = await local(False)
        except CompactoryError as error:
            refusal = problem(error)
            headers = {name.decode(): value.decode() for name, value in refusal.headers}
            response = Response(refusal.body, refusal.status, headers)
        response.headers[OWNER] = "1"
        return response

    async def _found(
        self, writer: MasteredWriter, request: Request, body: bytes, local: Local, repeatable: bool
    ) -> Response:
        loop, name = asyncio.get_running_loop(), writer.directory.name
        path = raw_path(request.scope).decode()
        deadline = loop.time() + _PATIENCE
        while True:
            owner = writer.owner
            try:
                if writer.owns or owner in (None, self.url) or self._gone.get(name) == owner:
                    return await local(True)
                assert owner is not None
                status, headers, content = await self._forwarding.send(
                    owner, request.method, path, dict(request.headers), body
                )
                if status != 503 or b":not-owner" not in content:
                    return Response(content, status, headers)
                self._gone[name] = owner
            except LeaseLost:
                if loop.time() > deadline:
                    raise
            except OwnerUnreached:
                self._gone[name] = owner
            except OwnerSilent as error:
                self._gone[name] = owner
                if not repeatable:
                    raise _silent(writer) from error
            await asyncio.sleep(_LOOK)


def write_routes(writes: Writes, outcomes: Outcomes) -> APIRouter:
    """Return the routes. They raise the errors of `problem`'s table."""
    routes = APIRouter(prefix="/v1/directories/{directory}", tags=["writes"])

    async def write(kind: Kind, directory: str, request: Request, key: str | None) -> Response:
        writer = writes.writer(directory, request)
        body, value = await _given(kind, request)
        operation = operation_of(kind, key, value, request.headers)

        async def local(take_over: bool) -> Response:
            [written] = await asyncio.wrap_future(writer.submit([operation], take_over=take_over))
            if isinstance(written, CompactoryError):
                raise written
            _audit(request, directory, operation, written)
            return _response(directory, written)

        repeatable = operation.idempotency_key is not None
        answer = await writes.answer(writer, request, body, local, repeatable=repeatable)
        if answer.status_code in (200, 201) and FORWARDED not in request.headers:
            return await outcomes.completed(writer.directory, key, request.headers.get("prefer"), answer)
        return answer

    def route(kind: Kind, media: tuple[str, ...], summary: str) -> None:
        async def endpoint(directory: str, request: Request) -> Response:
            return await write(kind, directory, request, decode_segment(raw_path(request.scope).partition(ENTRIES)[2]))

        routes.add_api_route(
            "/entries/{key:path}",
            endpoint,
            methods=[kind.upper()],
            operation_id=f"{kind}_entry",
            summary=summary,
            responses={**_stored(*((204,) if kind == "delete" else (200, 201, 202))), **_REFUSALS},
            openapi_extra=_extra(media, key=True),
            status_code=204 if kind == "delete" else 200,
            response_class=Response,
        )

    route("put", (_JSON,), "Create or replace an entry")
    route("patch", (MERGE_PATCH, _JSON), "Merge a patch into an entry (RFC 7396)")
    route("delete", (), "Remove an entry")

    @routes.post(
        "/entries",
        operation_id="post_entry",
        summary="Create an entry whose key is derived from its fields",
        status_code=201,
        responses={**_stored(201, 202), **_REFUSALS},
        openapi_extra=_extra((_JSON,), key=False),
        response_class=Response,
    )
    async def post(directory: str, request: Request) -> Response:
        return await write("post", directory, request, None)

    @routes.post(
        "/entries:bulkWrite",
        operation_id="bulk_write_entries",
        summary="Write many entries, one a line; each line is answered by itself, in order",
        responses={
            200: {"content": {NDJSON: {"schema": schema_of(WriteAnswer)}}, "description": "A line for each line"},
            **_REFUSALS,
        },
        openapi_extra={"requestBody": {"required": True, "content": {NDJSON: {"schema": schema_of(WriteLine)}}}},
        response_class=Response,
    )
    async def bulk(directory: str, request: Request) -> Response:
        writer = writes.writer(directory, request)
        check_media(request.headers.get("content-type"), NDJSON)
        body = await request.body()

        async def local(take_over: bool) -> Response:
            return Response(await _bulk(writer, request, body, take_over), media_type=NDJSON)

        return await writes.answer(writer, request, body, local, repeatable=False)

    return routes


async def _given(kind: Kind, request: Request) -> tuple[bytes, Any]:
    """Return the body and its JSON; none where a write has no value."""
    if kind == "delete":
        return b"", None
    body = await _body(request, _MOST_BYTES)
    check_media(request.headers.get("content-type"), *((MERGE_PATCH, _JSON) if kind == "patch" else (_JSON,)))
    return body, value_of(body)


async def _body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise TooLarge(f"the body is larger than {most >> 20} MiB")
    return bytes(body)


async def _bulk(writer: MasteredWriter, request: Request, body: bytes, take_over: bool) -> bytes:
    """Return the answers to all lines. Raises LeaseLost if nothing was written because another server is the owner."""
    lines = [line for line in body.split(b"\n") if line.strip()]
    answers: list[bytes] = []
    for start in range(0, len(lines), _MOST_LINES):
        asked = [_operation(line) for line in lines[start : start + _MOST_LINES]]
        operations = [each for each in asked if isinstance(each, Operation)]
        try:
            written = await asyncio.wrap_future(writer.submit(operations, take_over=take_over))
        except LeaseLost as error:
            if start == 0:
                raise
            written = [error] * len(operations)
        results = iter(written)
        for number, operation in enumerate(asked, start + 1):
            result = next(results) if isinstance(operation, Operation) else operation
            if isinstance(operation, Operation) and isinstance(result, Written):
                _audit(request, writer.directory.name, operation, result)
            answers.append(_line(number, result))
    return b"\n".join([*answers, b""])


def _operation(line: bytes) -> Operation | CompactoryError:
    try:
        return line_operation(line)
    except CompactoryError as error:
        return error


def _line(number: int, result: Written | CompactoryError) -> bytes:
    if isinstance(result, Written):
        status = 201 if result.status == "created" else 200
        answer = {"line": number, "status": status, "key": result.key, "etag": result.etag, "offset": str(result.token)}
        return orjson.dumps(answer)
    refusal = problem(result)
    return orjson.dumps({"line": number, "status": refusal.status, "problem": orjson.Fragment(refusal.body)})


def _response(directory: str, written: Written) -> Response:
    headers = {"etag": f'"{written.etag}"', "compactory-offset": str(written.token), "cache-control": "no-store"}
    if written.content is None:
        return Response(None, 204, headers)
    if written.status == "created":
        headers["location"] = f"/v1/directories/{quote(directory, safe='')}/entries/{quote(written.key, safe='')}"
    return Response(written.content, 201 if written.status == "created" else 200, headers, _JSON)


def _audit(request: Request, directory: str, operation: Operation, written: Written) -> None:
    """Say who wrote what, never the value."""
    scope = Scope(request.scope.get(SCOPE, Scope.READ)).name.lower()
    address = request.client.host if request.client is not None else "-"
    repeated = " (repeated)" if written.repeated else ""
    audit.info(
        "%s of %r in %s at %s by %s with the %s scope%s",
        operation.kind, written.key, directory, written.token, address, scope, repeated,
    )  # fmt: skip


def _silent(writer: MasteredWriter) -> WriteFailed:
    failed = WriteFailed(
        "the server that writes this directory does not answer; whether it has written is not known;"
        " the same request with an Idempotency-Key would tell",
        topic=writer.directory.topic,
        unknown=("",),
    )
    failed.retryable = True
    return failed


def _stored(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {_JSON: {"schema": {}}}
    return {
        status: {"description": "Written", "headers": _HEADERS} | ({} if status == 204 else {"content": content})
        for status in statuses
    }


def _extra(media: tuple[str, ...], *, key: bool) -> dict[str, Any]:
    names = {"If-Match": "ETags; the entry must have one of them, * for any",
             "If-None-Match": "*: the entry must not exist",
             "Idempotency-Key": "A repeat with the same key gets the first answer",
             "Prefer": "wait=SECONDS: for the outcome, where processors finish the write"}  # fmt: skip
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "header", "description": told, "schema": {"type": "string"}}
        for name, told in names.items()
    ]
    if key:
        parameters.append({"name": "key", "in": "path", "required": True, "schema": {"type": "string"}})
    body = {"required": True, "content": {kind: {"schema": {"type": "object"}} for kind in media}}
    return {"parameters": parameters} | ({"requestBody": body} if media else {})

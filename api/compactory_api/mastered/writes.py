"""Routes that write entries of directories mastered in Kafka, here or at the server that owns the directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from compactory.errors import CompactoryError, LeaseLost, NotReady, Unreachable
from compactory.store import GlobalStore
from compactory_mastered.operation import Kind, Operation, Written, failure
from compactory_mastered.writer import MasteredWriter, check_topics, start_writers

from ..http import limits
from ..http.access import GRANT, Scope
from ..http.body import check_media, read_body
from ..http.document import WriteAnswer, WriteLine
from ..http.errors import Forbidden, MethodRefused, TooLarge
from ..http.headers import joined
from ..http.openapi import KEY, parameter, problems, reference_to, text
from ..http.path import ENTRIES, decode_segment, raw_path
from ..http.problem import problem
from .forwarding import FORWARDED, OWNER, Answer, Forwarding, OwnerSilent, OwnerUnreached, StreamedAnswer
from .outcomes import completed
from .turn import Result, Turn
from .write_request import (
    MERGE_PATCH,
    NDJSON,
    check_bulk,
    line_operation,
    operation_of,
    value_of,
)

__all__ = ["Writes", "write_routes"]

Local = Callable[[], Awaitable[StreamedAnswer]]

_JSON = "application/json"
_MEDIA: dict[Kind, tuple[str, ...]] = {"put": (_JSON,), "patch": (MERGE_PATCH, _JSON), "delete": (), "post": (_JSON,)}
_MOST_BYTES = 1 << 20  # of one value
_MOST_LINES = 2000  # of a bulk write that are in one transaction
_PATIENCE = 10.0  # seconds in which the owner must be found
_LOOK = 0.02  # seconds between two looks
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
_STORED = {"description": "Written", "headers": _STORED_HEADERS, "content": {_JSON: {"schema": {}}}}
_ANSWERS: dict[int, dict[str, Any]] = {
    200: _STORED,
    201: _STORED,
    202: _STORED | {"description": "Written; processors have not finished it yet"},
    204: {"description": "Written", "headers": _HEADERS},
}
_PARAMETERS = [
    parameter("If-Match", "ETags; the entry must have one of them, * for any"),
    parameter("If-None-Match", "*: the entry must not exist"),
    parameter("Idempotency-Key", "A repeat with the same key gets the first answer"),
    parameter("Prefer", "wait=SECONDS: for the outcome, where processors finish the write"),
]


class Writes:
    """The writers of a server's directories. ``url`` is the server's own address, set before `start`."""

    def __init__(self, store: GlobalStore) -> None:
        self.url: str | None = None
        self.started = False
        self._store = store
        self._turns: dict[str, Turn] = {}
        self._gone: dict[str, tuple[str, int]] = {}  # directory → announcement of an owner that does not answer
        self._forwarding = Forwarding()

    def check(self) -> None:
        """Look at the topics before a load that may take long. Raises ConfigError with every problem."""
        with suppress(Unreachable):  # the store waits for Kafka, or starts without it
            check_topics(self._made(), loading=True)

    def start(self) -> None:
        """Check rules and topics, then take writes; once the store is ready. Raises ConfigError, Unreachable."""
        writers = self._made()
        start_writers(writers)
        self._turns, self.started = {writer.directory.name: Turn(writer) for writer in writers}, True

    def _made(self) -> list[MasteredWriter]:
        mastered = [directory for directory in self._store.directories if directory.rules is not None]
        return [MasteredWriter(self._store, directory, url=self.url) for directory in mastered]

    def close(self) -> None:
        """Answer what is under way and end."""
        self._forwarding.close()
        for turn in self._turns.values():
            turn.writer.close()

    async def single(self, kind: Kind, name: str, key: str | None, scope: Any, receive: Any) -> Answer:
        """Answer the request for one write. Raises the errors of `problem`'s table."""
        turn, headers = self._turn(name, scope), _headers(scope)
        body, value = b"", None
        if _MEDIA[kind]:
            body = await read_body(scope, receive, _MOST_BYTES)
            check_media(headers, *_MEDIA[kind])
            value = value_of(body)
        operation = operation_of(kind, key, value, headers)

        async def local() -> Answer:
            [written] = await turn.submit([operation], _caller(scope))
            if isinstance(written, CompactoryError):
                raise written
            return _answer(name, written)

        repeatable = operation.idempotency_key is not None
        status, answered, content = await self._answer(turn.writer, scope, headers, body, local, repeatable)
        assert isinstance(content, bytes)  # only a bulk write is answered in parts
        if status in (200, 201) and FORWARDED not in headers:
            stored = status, answered, content
            return await completed(self._store, turn.writer.directory, key, headers.get("prefer"), stored)
        return status, answered, content

    async def bulk(self, name: str, scope: Any, receive: Any) -> StreamedAnswer:
        """Answer a bulk write. Raises the errors of `problem`'s table."""
        turn, headers = self._turn(name, scope), _headers(scope)
        check_bulk(headers)
        body = await read_body(scope, receive, limits.REQUEST_BYTES)
        lines = _lines(body)

        async def local() -> StreamedAnswer:
            answers = _bulk(turn, _caller(scope), lines)
            first = await anext(answers, b"")
            return 200, {"content-type": NDJSON}, _joined_again(first, answers)

        return await self._answer(turn.writer, scope, headers, body, local, repeatable=False)

    def _turn(self, name: str, scope: Any) -> Turn:
        """Return the turn of a directory. Raises UnknownDirectory, Forbidden, MethodRefused, NotReady."""
        directory = self._store[name].directory
        if directory.rules is None:
            hint = f"Directory {name!r} is not mastered in Kafka: change the row of its table in Postgres instead"
            raise MethodRefused(scope["method"], "GET, HEAD", hint)
        if scope[GRANT].on(name) < Scope.WRITE:
            raise Forbidden(f"{scope[GRANT].name} may not write directory {name!r}: that needs the write token")
        if name not in self._turns:
            raise NotReady("the store is loading: writes are taken once it has read to the high watermark")
        return self._turns[name]

    async def _answer(
        self, writer: MasteredWriter, scope: Any, headers: dict[str, str], body: bytes, local: Local, repeatable: bool
    ) -> StreamedAnswer:
        """Return the answer of the directory's owner: this server's own, or the one of another server.

        A server whose owner does not answer becomes the owner: its fence lets the other one write nothing more. It
        sends a ``repeatable`` request again; of another one that was sent the outcome is unknown (WriteFailed).
        """
        if FORWARDED in headers:
            return await _to_another(writer, local)
        loop, name = asyncio.get_running_loop(), writer.directory.name
        deadline = loop.time() + _PATIENCE
        while True:
            announced = None if writer.owns else writer.announcement
            if announced is None or announced[0] == self.url or self._gone.get(name) == announced:
                try:
                    return await local()
                except LeaseLost:
                    if loop.time() > deadline:
                        raise
            else:
                path = raw_path(scope).decode()
                try:
                    return await self._forwarding.send(announced[0], scope["method"], path, headers, body)
                except OwnerSilent as error:
                    self._gone[name] = announced
                    if not (repeatable or isinstance(error, OwnerUnreached)):
                        raise failure(writer.directory.topic, "", error, unknown=True) from error
            await asyncio.sleep(_LOOK)


def write_routes(writes: Writes) -> APIRouter:
    """Return the routes. They raise the errors of `problem`'s table. `Application` answers most keyed writes itself."""
    routes = APIRouter(prefix="/v1/directories/{directory}", tags=["writes"])

    def route(kind: Kind, summary: str, *statuses: int) -> None:
        keyed = kind != "post"
        values = {media: {"schema": {"type": "object"}} for media in _MEDIA[kind]}

        async def endpoint(directory: str, request: Request) -> Response:
            key = decode_segment(raw_path(request.scope).partition(ENTRIES)[2]) if keyed else None
            return _sent(await writes.single(kind, directory, key, request.scope, request.receive))

        routes.add_api_route(
            "/entries/{key:path}" if keyed else "/entries",
            endpoint,
            methods=[kind.upper()],
            operation_id=f"{kind}_entry",
            summary=summary,
            status_code=statuses[0],
            responses={**{status: _ANSWERS[status] for status in statuses}, **_REFUSALS},
            openapi_extra={"parameters": [*_PARAMETERS, *([KEY] if keyed else [])]}
            | ({"requestBody": {"required": True, "content": values}} if values else {}),
            response_class=Response,
        )

    route("put", "Create or replace an entry", 200, 201, 202)
    route("patch", "Merge a patch into an entry (RFC 7396)", 200, 201, 202)
    route("delete", "Remove an entry", 204)
    route("post", "Create an entry whose key is derived from its fields", 201, 202)

    @routes.post(
        "/entries:bulkWrite",
        operation_id="bulk_write_entries",
        summary="Write many entries, one a line; each line is answered by itself, in order",
        responses={
            200: {"content": {NDJSON: {"schema": reference_to(WriteAnswer)}}, "description": "A line for each line"},
            **_BULK_REFUSALS,
        },
        openapi_extra={"requestBody": {"required": True, "content": {NDJSON: {"schema": reference_to(WriteLine)}}}},
        response_class=Response,
    )
    async def bulk(directory: str, request: Request) -> Response:
        return _sent(await writes.bulk(directory, request.scope, request.receive))

    return routes


def _sent(answer: StreamedAnswer) -> Response:
    status, headers, body = answer
    if not isinstance(body, bytes):
        return StreamingResponse(body, status, headers)  # ends the work where the client has gone
    return Response(None if status == 204 else body, status, headers)


async def _to_another(writer: MasteredWriter, local: Local) -> Answer:
    """Return the answer to a server that takes this one for the owner; where it is not, it does not become it."""
    try:
        if not writer.owns:
            raise LeaseLost(f"another process writes directory {writer.directory.name!r}")
        status, headers, content = await local()
        if not isinstance(content, bytes):
            content = b"".join([part async for part in content])
    except CompactoryError as error:
        refusal = problem(error)
        status, content = refusal.status, refusal.body
        headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return status, headers | {OWNER: "1"}, content


def _lines(body: bytes) -> list[bytes]:
    """Return the lines of a bulk write that are not empty. Raises TooLarge."""
    body = body.rstrip(b"\n")
    if body.count(b"\n") >= limits.BULK_LINES:
        raise TooLarge(f"the body has more than {limits.BULK_LINES} lines: send several bulk writes")
    return [line for line in body.split(b"\n") if line.strip()]


async def _joined_again(first: bytes, following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in following:
        yield part


async def _bulk(turn: Turn, caller: str, lines: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the answers to the lines of each transaction once it is committed.

    Raises LeaseLost at first if nothing was written because another server is the owner.
    """
    asked = [*map(_operation, lines[:_MOST_LINES])]
    for start in range(0, len(lines), _MOST_LINES):
        operations = [operation for operation in asked if isinstance(operation, Operation)]
        under_way = turn.submit(operations, caller)
        await asyncio.sleep(0)  # the writer has them now
        following = [*map(_operation, lines[start + _MOST_LINES : start + 2 * _MOST_LINES])]  # meanwhile
        try:
            written = await under_way
        except LeaseLost as error:
            if start == 0:
                raise
            written = list[Result]([error] * len(operations))
        results = iter(written)
        answers = [
            _line(number, next(results) if isinstance(operation, Operation) else operation)
            for number, operation in enumerate(asked, start + 1)
        ]
        yield b"\n".join([*answers, b""])
        asked = following


def _operation(line: bytes) -> Operation | CompactoryError:
    try:
        return line_operation(line)
    except CompactoryError as error:
        return error


def _line(number: int, result: Written | CompactoryError) -> bytes:
    if isinstance(result, Written):
        status, token = 201 if result.status == "created" else 200, result.token
        return b'{"line":%d,"status":%d,"key":%b,"etag":"%b","offset":"%b"}' % (
            number, status, orjson.dumps(result.key), result.etag.encode(), str(token).encode()
        )  # fmt: skip
    refusal = problem(result)
    return orjson.dumps({"line": number, "status": refusal.status, "problem": orjson.Fragment(refusal.body)})


def _answer(directory: str, written: Written) -> Answer:
    headers = {"etag": f'"{written.etag}"', "compactory-offset": str(written.token), "cache-control": "no-store"}
    if written.content is None:
        return 204, headers, b""
    headers["content-type"] = _JSON
    if written.status != "created":
        return 200, headers, written.content
    headers["location"] = f"/v1/directories/{quote(directory, safe='')}/entries/{quote(written.key, safe='')}"
    return 201, headers, written.content


def _headers(scope: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in joined(scope["headers"]).items()}


def _caller(scope: Any) -> str:
    client = scope.get("client")
    return f"{scope[GRANT].name} at {client[0] if client else '-'}"

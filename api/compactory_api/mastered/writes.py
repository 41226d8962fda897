"""Routes that write entries of directories mastered in Kafka, here or at the server that owns the directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from compactory.errors import CompactoryError, ConfigError, LeaseLost, NotReady, Unreachable
from compactory.store import GlobalStore
from compactory.write.operation import Kind, Operation
from compactory_mastered.writer import Announcement, MasteredWriter, check_topics, start_writers
from compactory_mastered.written import Written, failure

from ..http import limits
from ..http.access import GRANT, Scope
from ..http.models import WriteAnswer, WriteLine
from ..http.openapi import KEY, parameter, problems, reference_to, text
from ..http.problem import Forbidden, MethodRefused, TooLarge, problem
from ..http.request import ENTRIES, check_media, decode_segment, raw_path, read_body, text_headers
from .credential import CREDENTIAL, Answer
from .forwarding import ForwardedRequest, Forwarding, OwnerSilent, OwnerUnreached, StreamedAnswer
from .outcomes import completed
from .servers import Servers
from .turn import Result, Turn
from .write_request import (
    MERGE_PATCH,
    NDJSON,
    check_bulk,
    line_operation,
    operation_of,
    value_of,
)

__all__ = ["Writes", "check_owner", "write_routes"]

log = logging.getLogger("compactory.api")

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
    """The writers of a server's directories.

    ``url``      the server's own address, set before `start`
    ``servers``  those with which it forwards writes, set before `start`; None: it forwards none and takes none
    """

    def __init__(self, store: GlobalStore) -> None:
        self.url = ""
        self.servers: Servers | None = None
        self.started = False
        self._store = store
        self._turns: dict[str, Turn] = {}
        self._gone: dict[str, Announcement] = {}  # directory → announcement of an owner that does not answer
        self._forwarding: Forwarding | None = None
        self._warned = False

    def check(self) -> None:
        """Look at the topics before a load that may take long. Raises ConfigError with every problem."""
        writers = self._new_writers()
        if writers and self.servers is not None and (wrong := self.servers.problem_of(self.url, self.url)) is not None:
            raise ConfigError(f"this server's own address {wrong}: add it there, or set [http] advertised")
        with suppress(Unreachable):  # the store waits for Kafka, or starts without it
            check_topics(writers, loading=True)

    def start(self) -> None:
        """Check rules and topics, then take writes; once the store is ready. Raises ConfigError, Unreachable."""
        writers = self._new_writers()
        start_writers(writers)
        if self.servers is not None:
            self._forwarding = Forwarding(self.servers, self.url)
        self._turns, self.started = {writer.directory.name: Turn(writer) for writer in writers}, True

    def _new_writers(self) -> list[MasteredWriter]:
        url = self.url if self.servers is not None else None
        mastered = [directory for directory in self._store.directories if directory.rules is not None]
        return [MasteredWriter(self._store, directory, url=url) for directory in mastered]

    async def aclose(self) -> None:
        """Close the connections to other servers. In the event loop."""
        if self._forwarding is not None:
            await self._forwarding.aclose()

    def close(self) -> None:
        """Answer what is under way and end."""
        for turn in self._turns.values():
            turn.writer.close()

    async def single(self, kind: Kind, name: str, key: str | None, scope: Any, receive: Any) -> Answer:
        """Answer the request for one write. Raises the errors of `problem`'s table."""
        turn, headers = self.turn(name, scope), text_headers(scope)
        body, value = b"", None
        if _MEDIA[kind]:
            body = await _body(scope, receive, _MOST_BYTES)
            check_media(headers, *_MEDIA[kind])
            value = value_of(body)
        operation = operation_of(kind, key, value, headers)

        async def local() -> Answer:
            [written] = await turn.submit([operation], _caller(scope))
            if isinstance(written, CompactoryError):
                raise written
            return _answer(name, written)

        repeatable = operation.idempotency_key is not None
        rest = "entries" if key is None else f"entries/{_quoted(key)}"
        request = partial(_request, name, rest, scope, headers, body)
        status, answered, content = await self._answer(turn.writer, scope, request, local, repeatable)
        assert isinstance(content, bytes)  # only a bulk write is answered in parts
        if status in (200, 201) and CREDENTIAL not in scope:
            stored = status, answered, content
            return await completed(self._store, turn.writer.directory, key, headers.get("prefer"), stored)
        return status, answered, content

    async def bulk(self, name: str, scope: Any, receive: Any) -> StreamedAnswer:
        """Answer a bulk write. Raises the errors of `problem`'s table."""
        turn, headers = self.turn(name, scope), text_headers(scope)
        check_bulk(headers)
        body = await _body(scope, receive, limits.REQUEST_BYTES)
        lines = _lines(body)

        async def local() -> StreamedAnswer:
            answers = _bulk(turn, _caller(scope), lines)
            first = await anext(answers, b"")
            return 200, {"content-type": NDJSON}, _joined_again(first, answers)

        request = partial(_request, name, "entries:bulkWrite", scope, headers, body)
        return await self._answer(turn.writer, scope, request, local, repeatable=False)

    def turn(self, name: str, scope: Any) -> Turn:
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
        self,
        writer: MasteredWriter,
        scope: Any,
        request: Callable[[], ForwardedRequest],
        local: Local,
        repeatable: bool,
    ) -> StreamedAnswer:
        """Return the answer of the directory's owner: this server's own, or the one of another server.

        A server whose owner does not answer becomes the owner: its fence lets the other one write nothing more. It
        sends a ``repeatable`` request again; of another one that was sent the outcome is unknown (WriteFailed). For
        another server it does not become the owner: LeaseLost.
        """
        if CREDENTIAL in scope:
            check_owner(writer)
            return await local()
        loop, name = asyncio.get_running_loop(), writer.directory.name
        deadline = loop.time() + _PATIENCE
        while True:
            announced = None if writer.owns else writer.owner
            forwarding = self._way_to(name, announced)
            if announced is None or forwarding is None:
                try:
                    return await local()
                except LeaseLost:
                    self._warn_alone(name)
                    if loop.time() > deadline:
                        raise
            else:
                try:
                    return await forwarding.send(announced.url, request())
                except OwnerSilent as error:
                    self._gone[name] = announced
                    if not (repeatable or isinstance(error, OwnerUnreached)):
                        raise failure(writer.directory.topic, "", error, unknown=True) from error
            await asyncio.sleep(_LOOK)

    def _way_to(self, name: str, announced: Announcement | None) -> Forwarding | None:
        """Return what reaches the owner that has announced itself; None where this server is to write itself."""
        forwarding = self._forwarding
        if forwarding is None or announced is None or announced.url == self.url or self._gone.get(name) == announced:
            return None
        return forwarding if forwarding.may_reach(announced.url) else None

    def _warn_alone(self, name: str) -> None:
        if self._forwarding is None and not self._warned:
            self._warned = True
            log.warning(
                "another process writes directory %r too, and each takes it over from the other: set"
                " COMPACTORY_HTTP_SERVERS and COMPACTORY_HTTP_SERVERS_SECRET on all servers, so that they forward",
                name,
            )


def check_owner(writer: MasteredWriter) -> None:
    """Raise LeaseLost unless this server was the owner when it last looked."""
    if not writer.owns:
        raise LeaseLost(f"another process writes directory {writer.directory.name!r}")


def _request(name: str, rest: str, scope: Any, headers: dict[str, str], body: bytes) -> ForwardedRequest:
    place = f"/v1/directories/{_quoted(name)}"
    return ForwardedRequest(
        caller=_caller(scope), method=scope["method"], place=place, rest=rest, headers=headers, body=body
    )


def _quoted(segment: str) -> str:
    return "%2E" * len(segment) if segment in (".", "..") else quote(segment, safe="")  # else it goes up a folder


async def _body(scope: Any, receive: Any, most_bytes: int) -> bytes:
    body = await read_body(scope, receive, most_bytes)
    if CREDENTIAL in scope:
        scope[CREDENTIAL].check_body(body)
    return body


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
    parsed_lines = [*map(_operation, lines[:_MOST_LINES])]
    for start in range(0, len(lines), _MOST_LINES):
        operations = [operation for operation in parsed_lines if isinstance(operation, Operation)]
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
            for number, operation in enumerate(parsed_lines, start + 1)
        ]
        yield b"\n".join([*answers, b""])
        parsed_lines = following


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


def _caller(scope: Any) -> str:
    client = scope.get("client")
    return f"{scope[GRANT].name} at {client[0] if client else '-'}"

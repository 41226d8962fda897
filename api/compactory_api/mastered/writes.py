"""Writes of directories mastered in Kafka, made here or by the server that owns the directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from compactory.errors import CompactoryError, ConfigError, LeaseLost, NotReady, Unreachable
from compactory.store import GlobalStore
from compactory.write.operation import Kind, Operation, Written, WrittenBatch, failure
from compactory_mastered.writer import Announcement, MasteredWriter, check_topics, start_writers

from ..http import limits
from ..http.access import GRANT, Scope
from ..http.problem import Forbidden, MethodRefused, NoResource, TooLarge, problem
from ..http.request import check_media, read_body, text_headers
from .credential import CREDENTIAL, Answer
from .forwarding import ForwardedRequest, Forwarding, OwnerSilent, OwnerUnreached, StreamedAnswer
from .outcomes import completed
from .servers import Servers
from .write_batcher import Result, WriteBatcher
from .write_request import JSON, MEDIA_TYPES, NDJSON, batch_of, check_bulk, line_operation, operation_of, value_of

__all__ = ["Writes", "check_owner"]

log = logging.getLogger("compactory.api")

A = TypeVar("A", Answer, StreamedAnswer)

_MAX_BYTES = 1 << 20  # of one value
_MAX_LINES = 2000  # of a bulk write that are in one transaction
_OWNER_TIMEOUT = 10.0  # seconds in which an owner must be found
_RETRY_INTERVAL = 0.02  # seconds between two tries to find the owner


class Writes:
    """The writers of a server's directories.

    ``url``         the server's own address, set before `start`
    ``servers``     the servers with which it exchanges forwarded writes, set before `start`; None: it forwards none
    ``is_started``  True once writes are accepted
    """

    def __init__(self, store: GlobalStore) -> None:
        self.url = ""
        self.servers: Servers | None = None
        self.is_started = False
        self._store = store
        self._batchers: dict[str, WriteBatcher] = {}  # by directory
        self._silent_owners: dict[str, Announcement] = {}  # by directory: an owner that did not answer
        self._forwarding: Forwarding | None = None
        self._has_warned = False

    def check(self) -> None:
        """Check topics before a load that may take long. Raises ConfigError with every problem."""
        writers = self._new_writers()
        if writers and self.servers is not None:
            reason = self.servers.problem_of(self.url, self.url)
            if reason is not None:
                raise ConfigError(f"this server's own address {reason}: add it there, or set [http] advertised")
        with suppress(Unreachable):  # the store waits for Kafka, or starts without it
            check_topics(writers, loading=True)

    def start(self) -> None:
        """Check rules and topics, then accept writes; the store must be ready. Raises ConfigError, Unreachable."""
        writers = self._new_writers()
        start_writers(writers)
        if self.servers is not None:
            self._forwarding = Forwarding(self.servers, self.url)
        self._batchers = {writer.directory.name: WriteBatcher(writer) for writer in writers}
        self.is_started = True

    def _new_writers(self) -> list[MasteredWriter]:
        url = self.url if self.servers is not None else None
        mastered = [directory for directory in self._store.directories if directory.rules is not None]
        return [MasteredWriter(self._store, directory, url=url) for directory in mastered]

    async def aclose(self) -> None:
        """Close the connections to other servers. In the event loop."""
        if self._forwarding is not None:
            await self._forwarding.aclose()

    def close(self) -> None:
        """Finish pending writes and close the writers."""
        for batcher in self._batchers.values():
            batcher.writer.close()

    async def single(self, kind: Kind, directory: str, key: str | None, scope: Any, receive: Any) -> Answer:
        """Return the answer to the request for one write. Raises the errors in the table of `problem`."""
        batcher, headers = self.batcher(directory, scope), text_headers(scope)
        body, value = b"", None
        if MEDIA_TYPES[kind]:
            body = await _body(scope, receive, _MAX_BYTES)
            check_media(headers, *MEDIA_TYPES[kind])
            value = value_of(body)
        operation = operation_of(kind, key, value, headers)

        async def write_here() -> Answer:
            [result] = await batcher.submit([operation], _caller(scope))
            if isinstance(result, CompactoryError):
                raise result
            return _answer(directory, result)

        subpath = "entries" if key is None else f"entries/{_quoted(key)}"
        new_request = partial(_forwarded_request, directory, subpath, scope, headers, body)
        is_repeatable = operation.idempotency_key is not None
        answer = await self._answer(batcher.writer, scope, new_request, write_here, is_repeatable)
        if answer[0] in (200, 201) and CREDENTIAL not in scope:
            return await completed(self._store, batcher.writer.directory, key, headers.get("prefer"), answer)
        return answer

    async def bulk(self, directory: str, scope: Any, receive: Any) -> StreamedAnswer:
        """Return the answer to a bulk write. Raises the errors in the table of `problem`."""
        batcher, headers = self.batcher(directory, scope), text_headers(scope)
        check_bulk(headers)
        body = await _body(scope, receive, limits.REQUEST_BYTES)
        lines = _lines(body)

        async def write_here() -> StreamedAnswer:
            parts = _bulk_answer(batcher, _caller(scope), lines)
            first = await anext(parts, b"")
            return 200, {"content-type": NDJSON}, _with_first(first, parts)

        new_request = partial(_forwarded_request, directory, "entries:bulkWrite", scope, headers, body)
        return await self._answer(batcher.writer, scope, new_request, write_here, is_repeatable=False)

    async def batch(self, directory: str, scope: Any, receive: Any) -> Answer:
        """Return the answer to a batch of operations, all or none. Raises the errors in the table of `problem`."""
        batcher, headers = self.batcher(directory, scope), text_headers(scope)
        body = await _body(scope, receive, limits.REQUEST_BYTES)
        batch = batch_of(body, headers)

        async def write_here() -> Answer:
            return _batch_answer(await batcher.write_batch(batch, _caller(scope)))

        new_request = partial(_forwarded_request, directory, "entries:batchWrite", scope, headers, body)
        return await self._answer(
            batcher.writer, scope, new_request, write_here, is_repeatable=batch.idempotency_key is not None
        )

    def cursor(self, directory: str, name: str, scope: Any) -> str | None:
        """Return a writer's cursor. Raises UnknownDirectory, NoResource, Forbidden, NotReady, WriteRefused."""
        if self._store[directory].directory.rules is None:
            raise NoResource(f"directory {directory!r} is not mastered in Kafka, so it has no cursors")
        return self.batcher(directory, scope).writer.cursor(name)

    def batcher(self, directory: str, scope: Any) -> WriteBatcher:
        """Return the batcher of a directory. Raises UnknownDirectory, Forbidden, MethodRefused, NotReady."""
        if self._store[directory].directory.rules is None:
            remedy = (
                f"Directory {directory!r} is not mastered in Kafka: change the row of its table in Postgres instead"
            )
            raise MethodRefused(scope["method"], "GET, HEAD", remedy)
        if scope[GRANT].on(directory) < Scope.WRITE:
            raise Forbidden(f"{scope[GRANT].name} may not write directory {directory!r}: that needs the write token")
        if directory not in self._batchers:
            raise NotReady("the store is loading: writes are accepted once it has read to the high watermark")
        return self._batchers[directory]

    async def _answer(
        self,
        writer: MasteredWriter,
        scope: Any,
        new_request: Callable[[], ForwardedRequest],
        write_here: Callable[[], Awaitable[A]],
        is_repeatable: bool,
    ) -> A | Answer:
        """Return the answer of the directory's owner: of this server or of another one.

        If the owner does not answer, this server becomes the owner: its fence stops all writes of the previous one. It
        repeats a request that ``is_repeatable``. The outcome of another one that was sent is unknown (WriteFailed). A
        server does not become the owner for a forwarded request (LeaseLost).
        """
        if CREDENTIAL in scope:
            check_owner(writer)
            return await write_here()
        loop, directory = asyncio.get_running_loop(), writer.directory.name
        deadline = loop.time() + _OWNER_TIMEOUT
        while True:
            announced = None if writer.owns else writer.owner
            forwarding = self._forwarding_to(announced, directory)
            if announced is None or forwarding is None:
                try:
                    return await write_here()
                except LeaseLost:
                    self._warn_without_servers(directory)
                    if loop.time() > deadline:
                        raise
            else:
                try:
                    return await forwarding.send(announced.url, new_request())
                except OwnerSilent as error:
                    self._silent_owners[directory] = announced
                    if not (is_repeatable or isinstance(error, OwnerUnreached)):
                        raise failure(writer.directory.topic, "", error, unknown=True) from error
            await asyncio.sleep(_RETRY_INTERVAL)

    def _forwarding_to(self, announced: Announcement | None, directory: str) -> Forwarding | None:
        """Return the forwarding that reaches the announced owner; None if this server must write itself."""
        if self._forwarding is None or announced is None or announced.url == self.url:
            return None
        if self._silent_owners.get(directory) == announced or not self._forwarding.may_reach(announced.url):
            return None
        return self._forwarding

    def _warn_without_servers(self, directory: str) -> None:
        if self._forwarding is None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "another process writes directory %r too, and each takes it over from the other: set"
                " COMPACTORY_HTTP_SERVERS and COMPACTORY_HTTP_SERVERS_SECRET on all servers, so that they forward",
                directory,
            )


def check_owner(writer: MasteredWriter) -> None:
    """Raise LeaseLost unless this server was the owner at its last write or check."""
    if not writer.owns:
        raise LeaseLost(f"another process writes directory {writer.directory.name!r}")


def _forwarded_request(
    directory: str, subpath: str, scope: Any, headers: dict[str, str], body: bytes
) -> ForwardedRequest:
    return ForwardedRequest(
        caller=_caller(scope),
        method=scope["method"],
        directory_path=f"/v1/directories/{_quoted(directory)}",
        subpath=subpath,
        headers=headers,
        body=body,
    )


def _quoted(segment: str) -> str:
    # Without the special case an HTTP client would resolve `.` and `..` as relative paths.
    return "%2E" * len(segment) if segment in (".", "..") else quote(segment, safe="")


async def _body(scope: Any, receive: Any, max_bytes: int) -> bytes:
    body = await read_body(scope, receive, max_bytes)
    if CREDENTIAL in scope:
        scope[CREDENTIAL].check_body(body)
    return body


def _lines(body: bytes) -> list[bytes]:
    """Return the lines of a bulk write that are not empty. Raises TooLarge."""
    body = body.rstrip(b"\n")
    if body.count(b"\n") >= limits.BULK_LINES:
        raise TooLarge(f"the body has more than {limits.BULK_LINES} lines: send several bulk writes")
    return [line for line in body.split(b"\n") if line.strip()]


async def _with_first(first: bytes, following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in following:
        yield part


async def _bulk_answer(batcher: WriteBatcher, caller: str, lines: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the results of the lines of each transaction once it is committed.

    Raises LeaseLost before the first result if nothing was written because another server is the owner.
    """
    parsed_lines = [*map(_operation, lines[:_MAX_LINES])]
    for start in range(0, len(lines), _MAX_LINES):
        operations = [operation for operation in parsed_lines if isinstance(operation, Operation)]
        writing = batcher.submit(operations, caller)
        await asyncio.sleep(0)  # the batcher passes them on, and the writer's thread works while the next are parsed
        next_lines = [*map(_operation, lines[start + _MAX_LINES : start + 2 * _MAX_LINES])]
        try:
            written = await writing
        except LeaseLost as error:
            if start == 0:
                raise
            written = list[Result]([error] * len(operations))
        results = iter(written)
        answer_lines = [
            _answer_line(number, next(results) if isinstance(operation, Operation) else operation)
            for number, operation in enumerate(parsed_lines, start + 1)
        ]
        yield b"\n".join([*answer_lines, b""])
        parsed_lines = next_lines


def _operation(line: bytes) -> Operation | CompactoryError:
    try:
        return line_operation(line)
    except CompactoryError as error:
        return error


def _answer_line(number: int, result: Written | CompactoryError) -> bytes:
    if isinstance(result, Written):
        status, token = _status(result), result.token
        return b'{"line":%d,"status":%d,"key":%b,"etag":"%b","offset":"%b"}' % (
            number, status, orjson.dumps(result.key), result.etag.encode(), str(token).encode()
        )  # fmt: skip
    refusal = problem(result)
    return orjson.dumps({"line": number, "status": refusal.status, "problem": orjson.Fragment(refusal.body)})


def _batch_answer(written: WrittenBatch) -> Answer:
    results = [
        {"status": _status(result), "key": result.key, "etag": result.etag, "offset": str(result.token)}
        for result in written.results
    ]
    offsets = ", ".join(map(str, written.tokens))
    headers = {"content-type": JSON, "compactory-offset": offsets, "cache-control": "no-store"}
    return 200, headers, orjson.dumps({"results": results, "cursor": written.cursor})


def _status(written: Written) -> int:
    return 201 if written.status == "created" else 200


def _answer(directory: str, written: Written) -> Answer:
    headers = {"etag": f'"{written.etag}"', "compactory-offset": str(written.token), "cache-control": "no-store"}
    if written.content is None:
        return 204, headers, b""
    headers["content-type"] = JSON
    if written.status != "created":
        return 200, headers, written.content
    headers["location"] = f"/v1/directories/{quote(directory, safe='')}/entries/{quote(written.key, safe='')}"
    return 201, headers, written.content


def _caller(scope: Any) -> str:
    client = scope.get("client")
    return f"{scope[GRANT].name} at {client[0] if client else '-'}"

"""The requests of a client in their order, and the meaning of the replies. No I/O: both clients send the requests."""

from __future__ import annotations

import random
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Lock
from typing import Any, Generic, TypeVar, Unpack
from urllib.parse import quote, unquote, urlencode
from uuid import uuid4

import httpx2
import orjson

from compactory.codec.decoding import decoder
from compactory.codec.encoding import RecordEncoder, json_bytes
from compactory.directory import Directory
from compactory.errors import CompactoryError, WriteFailed
from compactory.token import Token
from compactory.write.operation import DEFAULT_CURSOR, Kind, Operation, WriterCursor
from compactory_client.failures import (
    Reply,
    document_of,
    error_of_document,
    error_of_reply,
    header_of,
    may_have_run,
    proxy_retry_after,
    wrong_server,
)
from compactory_client.models import BatchResult, Outcome, Selection, Stored, WriteOptions, WriteResult

__all__ = ["Exchange", "OwnWrites", "Request", "Result", "Steps", "next_step"]

T = TypeVar("T")

_FIRST_PAUSE = 0.05  # seconds before the first repeat; doubled for each further one
_MAX_PAUSE = 1.0
_MAX_TOKENS = 100  # in one request
_MAX_LINES = 10_000  # of one bulk request
_BULK_BYTES = 8 << 20  # a bulk request that has more gets no further line
_PAGE_SIZE = 1000  # entries of a page


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send after ``delay`` seconds. ``is_repeatable``: it may be sent twice without harm."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None
    is_repeatable: bool = True
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """The result of a call whose requests are answered."""

    value: T


Steps = Generator[Request, Reply | None, T]
"""The requests of one call, in their order. Takes the reply to each, and returns the result of the call."""


def next_step(steps: Steps[T], reply: Reply | None) -> Request | Result[T]:
    """Return the next request of a call after the reply to the previous one (None at first), or the call's result."""
    try:
        return steps.send(reply)
    except StopIteration as end:
        return Result(end.value)


class OwnWrites:
    """The newest write of a client in each partition of a directory. Thread-safe."""

    def __init__(self) -> None:
        self._tokens: dict[int, Token] = {}  # by partition, the last changed at the end
        self._changing = Lock()  # guards _tokens

    def add(self, token: Token) -> None:
        """Add the token of a write."""
        with self._changing:
            previous = self._tokens.pop(token.partition, token)
            self._tokens[token.partition] = token if token.offset >= previous.offset else previous

    def headers(self, wait: float) -> dict[str, str]:
        """Return the headers of a read that waits for these writes: as many of the newest as a server accepts."""
        with self._changing:
            newest = ", ".join(map(str, [*self._tokens.values()][-_MAX_TOKENS:]))
        return {"compactory-min-offset": newest, "prefer": f"wait={wait:g}"} if newest else {}


class Exchange(Generic[T]):
    """The requests about one directory. Thread-safe.

    ``timeout``  seconds in which a request is repeated while the server or its Kafka is unreachable. That is safe,
                 because each write has an Idempotency-Key
    ``wait``     seconds that a read may wait until the server has read ``own_writes``
    """

    def __init__(self, directory: Directory[T], own_writes: OwnWrites, timeout: float, wait: float) -> None:
        self._directory = directory.name
        self._is_text = directory.decode is str
        self._directory_path = f"/v1/directories/{quote(directory.name, safe='')}"
        self._path = f"{self._directory_path}/entries"
        self._decode: Callable[[bytes], T] = decoder(directory)
        self._encoding = RecordEncoder(directory)
        self._timeout = timeout
        self._wait = wait
        self._own_writes = own_writes

    def get(self, key: str) -> Steps[Stored[T]]:
        """Look an entry up, after the writes of this client. Raises EntryMissing, WaitTimeout."""
        request = Request("GET", self._entry_path(key), self._own_writes.headers(self._wait))
        response = yield from self._answered(request, key)
        return self._stored(key, response)

    def page(self, selection: Selection, cursor: str | None) -> Steps[tuple[list[tuple[str, T]], str | None]]:
        """Return keys and values of one page by key, and the cursor of the next page: None after the last.

        Raises WaitTimeout, Unreachable, ConfigError, BadRecord.
        """
        options = {"prefix": selection.get("prefix"), "index": selection.get("index"), "cursor": cursor}
        query = [("limit", str(_PAGE_SIZE)), *((name, text) for name, text in options.items() if text is not None)]
        query += [
            ("value", value if isinstance(value, str) else orjson.dumps(value).decode())
            for value in selection.get("values", ())
        ]
        request = Request("GET", f"{self._path}?{urlencode(query)}", self._own_writes.headers(self._wait))
        response = yield from self._answered(request, None)
        page = document_of(response, "entries", "next_cursor")
        return [(entry["key"], self._value(entry["value"])) for entry in page["entries"]], page["next_cursor"]

    def outcome(self, written: Stored[T], *, wait: float = 0.0) -> Steps[Outcome]:
        """Return the outcome of a write that processors finish; wait for it at most ``wait`` seconds."""
        query = urlencode({"event": written.etag})
        path = f"{self._directory_path}/outcomes/{quote(written.key, safe='')}?{query}"
        deadline = time.monotonic() + wait
        while True:
            remaining = deadline - time.monotonic()
            headers = {"prefer": f"wait={max(0.0, min(remaining, self._wait)):.3f}"}
            response = yield from self._answered(Request("GET", path, headers), written.key)
            document = document_of(response, "state", "value")
            outcome = Outcome(state=document["state"], value=document["value"])
            if remaining <= self._wait or not outcome.pending:
                return outcome

    def bulk_requests(self, operations: Iterable[Operation]) -> Iterator[Request]:
        """Yield the bulk requests of operations. Raises WriteRefused for a value that can't be encoded."""
        lines, size = list[bytes](), 0
        for operation in operations:
            lines.append(self._line(operation))
            size += len(lines[-1])
            if len(lines) == _MAX_LINES or size > _BULK_BYTES:
                yield self._bulk_request(lines)
                lines, size = [], 0
        if lines:
            yield self._bulk_request(lines)

    def bulk(self, request: Request) -> Steps[list[WriteResult | CompactoryError]]:
        """Send a bulk request; return the result of each line."""
        response = yield from self._answered(request, None)
        try:
            results = [self._line_result(orjson.loads(line)) for line in response.content.splitlines()]
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise wrong_server(response) from error
        if len(results) != (request.body or b"").count(b"\n") + 1:
            raise wrong_server(response)
        return results

    def put(self, key: str, value: T, **options: Unpack[WriteOptions]) -> Steps[Stored[T]]:
        """Create or replace an entry."""
        response = yield from self._write("put", key, self._encoding.record(key, value)[1], options)
        return self._stored(key, response)

    def patch(self, key: str, changes: Mapping[str, Any], **options: Unpack[WriteOptions]) -> Steps[Stored[T]]:
        """Merge changes into an entry (RFC 7396)."""
        response = yield from self._write("patch", key, orjson.dumps(changes), options)
        return self._stored(key, response)

    def post(self, value: T, **options: Unpack[WriteOptions]) -> Steps[Stored[T]]:
        """Create an entry whose key the server derives from its fields."""
        response = yield from self._write("post", None, self._encoding.record("-", value)[1], options)
        return self._stored(unquote(header_of(response, "location").removeprefix(f"{self._path}/")), response)

    def delete(self, key: str, **options: Unpack[WriteOptions]) -> Steps[Token]:
        """Remove an entry."""
        response = yield from self._write("delete", key, None, options)
        return Token.parse(header_of(response, "compactory-offset"))

    def write_batch(
        self,
        operations: Iterable[Operation],
        *,
        cursor: WriterCursor | None = None,
        idempotency_key: str | None = None,
    ) -> Steps[BatchResult]:
        """Write 1 to 100 operations on different keys, all or none, and the writer's cursor with them.

        Raises BatchRefused with the first operation that is refused, CursorConflict with the stored cursor.
        """
        body = b'{"operations":[%b]' % b",".join(map(self._line, operations))
        if cursor is not None:
            body += b',"cursor":%b' % json_bytes(asdict(cursor))
        headers = {"content-type": "application/json", "idempotency-key": idempotency_key or uuid4().hex}
        request = Request("POST", f"{self._path}:batchWrite", headers, body + b"}")
        response = yield from self._answered(request, None)
        written = document_of(response, "results", "cursor")
        results = [self._write_result(result) for result in written["results"]]
        return BatchResult(results=results, cursor=written["cursor"])

    def cursor(self, name: str = DEFAULT_CURSOR) -> Steps[str | None]:
        """Return the cursor that a writer has stored with its last batch; None if there is none.

        A batch of the last milliseconds may be missing. A batch with the older cursor gets CursorConflict with the
        stored one.
        """
        request = Request("GET", f"{self._directory_path}/cursors/{quote(name, safe='')}", {})
        response = yield from self._answered(request, None)
        cursor: str | None = document_of(response, "cursor")["cursor"]
        return cursor

    def _write(self, kind: Kind, key: str | None, body: bytes | None, options: WriteOptions) -> Steps[httpx2.Response]:
        headers = {"idempotency-key": options.get("idempotency_key") or uuid4().hex}
        if body is not None:
            headers["content-type"] = "application/merge-patch+json" if kind == "patch" else "application/json"
        if (etag := options.get("if_match")) is not None:
            headers["if-match"] = etag if etag == "*" else f'"{etag}"'
        if options.get("create"):
            headers["if-none-match"] = "*"
        path = self._path if key is None else self._entry_path(key)
        response = yield from self._answered(Request(kind.upper(), path, headers, body), key)
        self._own_writes.add(Token.parse(header_of(response, "compactory-offset")))
        return response

    def _value(self, shown: Any) -> T:
        """Return the value of an entry that a document shows as JSON, text or base64."""
        if self._is_text and isinstance(shown, str):
            return self._decode(shown.encode())
        if isinstance(shown, dict) and shown.keys() == {"base64"}:
            return self._decode(b64decode(shown["base64"]))
        return self._decode(orjson.dumps(shown))

    def _line(self, operation: Operation) -> bytes:
        line: dict[str, Any] = {"op": operation.kind}
        if operation.kind == "patch":
            line["value"] = operation.value
        elif operation.kind != "delete":
            line["value"] = orjson.Fragment(self._encoding.record(operation.key or "-", operation.value)[1] or b"")
        for name, etags in (("if_match", operation.if_match), ("if_none_match", operation.if_none_match)):
            if etags is not None:
                line[name] = "*" if "*" in etags else ", ".join(f'"{etag}"' for etag in etags)
        texts = {"key": operation.key, "idempotency_key": operation.idempotency_key}
        return json_bytes(line | {name: text for name, text in texts.items() if text is not None})

    def _bulk_request(self, lines: Sequence[bytes]) -> Request:
        headers = {"content-type": "application/x-ndjson"}
        return Request("POST", f"{self._path}:bulkWrite", headers, b"\n".join(lines), is_repeatable=False)

    def _line_result(self, line: dict[str, Any]) -> WriteResult | CompactoryError:
        if "problem" in line:
            return error_of_document(line["status"], line["problem"], self._directory, line.get("key"))
        return self._write_result(line)

    def _write_result(self, result: dict[str, Any]) -> WriteResult:
        token = Token.parse(result["offset"])
        self._own_writes.add(token)
        return WriteResult(key=result["key"], etag=result["etag"], token=token, created=result["status"] == 201)

    def _entry_path(self, key: str) -> str:
        # Without the special case httpx2 would resolve `.` and `..` as relative paths.
        segment = "%2E" * len(key) if key in (".", "..") else quote(key, safe="")
        return f"{self._path}/{segment}"

    def _stored(self, key: str, response: httpx2.Response) -> Stored[T]:
        etag, token = header_of(response, "etag").strip('"'), Token.parse(header_of(response, "compactory-offset"))
        return Stored(key=key, value=self._decode(response.content), etag=etag, token=token)

    def _answered(self, request: Request, key: str | None) -> Steps[httpx2.Response]:
        """Send a request until it succeeds, fails for good or its time is over; return the response of a success."""
        deadline, pause, may_be_written = time.monotonic() + self._timeout, _FIRST_PAUSE, False
        while True:
            reply = yield request
            assert reply is not None
            if isinstance(reply, httpx2.Response) and reply.status_code < 300:
                return reply
            error = error_of_reply(reply, self._directory, key)
            may_be_written = may_be_written or may_have_run(reply)
            delay = max(pause * random.uniform(0.5, 1.0), proxy_retry_after(reply))  # noqa: S311 - spreads clients
            is_over = time.monotonic() + delay > deadline or (may_be_written and not request.is_repeatable)
            if not error.retryable or is_over:
                if may_be_written and error.retryable and request.method != "GET":
                    raise self._unknown_outcome(request, error, key)
                raise error
            request = replace(request, delay=delay)
            pause = min(2 * pause, _MAX_PAUSE)

    def _unknown_outcome(self, request: Request, error: CompactoryError, key: str | None) -> CompactoryError:
        """Return the error of a write that may have been written, whatever the last reply was."""
        if isinstance(error, WriteFailed) and error.unknown:
            return error
        remedy = (
            "send it again with the same idempotency_key" if request.is_repeatable else "read the entries of its lines"
        )
        message = f"directory {self._directory!r}: it is not known whether the write was done ({error}); {remedy}"
        failed = WriteFailed.of_key(message, topic=self._directory, key=key, unknown=True, cause=error)
        failed.__cause__ = error
        return failed

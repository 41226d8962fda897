"""The requests of a client in their order, and the meaning of the answers. No I/O: both clients drive these steps."""

from __future__ import annotations

import random
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import quote, unquote, urlencode
from uuid import uuid4

import httpx2
import orjson

from compactory.codec.decoding import decoder
from compactory.codec.encoding import RecordEncoder, json_bytes
from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, Unreachable, WriteFailed
from compactory.token import Token
from compactory_client.failures import (
    Given,
    document_of,
    failure_of,
    foreign,
    header_of,
    may_be_done,
    pause_asked,
)
from compactory_mastered.operation import Kind, Operation

__all__ = [
    "Exchange",
    "Outcome",
    "Page",
    "Request",
    "Seen",
    "Selection",
    "Steps",
    "Stored",
    "WriteOptions",
    "WriteResult",
]

T = TypeVar("T")

_FIRST_PAUSE = 0.05  # seconds before the first repeat; doubled after each
_LONGEST_PAUSE = 1.0
_MOST_TOKENS = 100  # in one request
_MOST_LINES = 10_000  # of one bulk request
_MOST_BYTES = 8 << 20  # after which a bulk request gets no further line
_PAGE = 1000  # entries of a page
_PENDING = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Generic[T]):
    """An entry as the server has it.

    ``value``  without the fields that are internal to the directory
    ``etag``   for ``if_match``, without quotes
    ``token``  the place of its record; any store that has read it shows the entry
    """

    key: str
    value: T = field(repr=False)
    etag: str
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """A write of a bulk that was made. ``created``: there was no such entry before."""

    key: str
    etag: str
    token: Token
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a write that processors finish.

    ``state``  ``pending``, or the name of the directory that has the outcome
    ``value``  the outcome's, None while it is pending
    """

    state: str
    value: Any = field(repr=False)

    @property
    def pending(self) -> bool:
        """True if processors have not finished the write."""
        return self.state == _PENDING


class Selection(TypedDict, total=False):
    """A choice of entries to list.

    ``prefix``  only keys that begin with this
    ``index``   name of an index; only entries that have ``values`` in it
    ``values``  one for each field of the index, in its order
    """

    prefix: str
    index: str
    values: Sequence[str | float]


class WriteOptions(TypedDict, total=False):
    """Conditions of a write.

    ``if_match``         the entry must have this entity tag; ``*``: it must exist
    ``create``           the entry must not exist
    ``idempotency_key``  the key of an earlier try, to get its answer again; by default each call has a new one
    """

    if_match: str | None
    create: bool
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send. It is sent again after an unclear failure only if it is ``repeatable``."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None
    repeatable: bool = True


Steps = Generator[Request | float, Given, T]
"""Yields requests to send and seconds to pause; is given the answer, or the error of a request without one."""


Page = tuple[list[tuple[str, T]], str | None]
"""Keys and values, and the cursor of the page after; None for the last one."""


class Seen:
    """The newest write in each partition of a directory. Thread-safe."""

    def __init__(self) -> None:
        self._tokens: dict[int, Token] = {}
        self._changing = Lock()  # guards _tokens

    def note(self, token: Token) -> None:
        """Keep the token of a write."""
        with self._changing:
            known = self._tokens.pop(token.partition, token)  # and put last
            self._tokens[token.partition] = max(known, token, key=lambda each: each.offset)

    def newest(self) -> str:
        """Return them as ``Compactory-Min-Offset``, at most as many as a server takes; empty where there are none."""
        with self._changing:
            return ", ".join(map(str, [*self._tokens.values()][-_MOST_TOKENS:]))


class Exchange(Generic[T]):
    """The requests about one directory. Thread-safe.

    ``timeout`` is the number of seconds in which a request is repeated while the server or its Kafka is away. That is
    safe, as each write has an Idempotency-Key. ``wait`` is the number of seconds that a read may wait until the server
    has what was ``seen``: written through this client.
    """

    def __init__(self, directory: Directory[T], seen: Seen, timeout: float, wait: float) -> None:
        self._name = directory.name
        self._text = directory.decode is str
        self._path = f"/v1/directories/{quote(directory.name, safe='')}/entries"
        self._decode: Callable[[bytes], T] = decoder(directory)
        self._encoding = RecordEncoder(directory)
        self._timeout = timeout
        self._wait = wait
        self._seen = seen

    def get(self, key: str) -> Steps[Stored[T]]:
        """Look an entry up; it shows all that was written through this client. Raises EntryMissing, WaitTimeout."""
        answer = yield from self._answered(Request("GET", self._place(key), self._fresh()), key)
        return self._stored(key, answer)

    def page(self, selection: Selection, cursor: str | None) -> Steps[Page[T]]:
        """List entries by key, from a page's cursor on. Raises WaitTimeout, Unreachable, ConfigError, BadRecord."""
        given = {"prefix": selection.get("prefix"), "index": selection.get("index"), "cursor": cursor}
        asked = [("limit", str(_PAGE)), *((name, text) for name, text in given.items() if text is not None)]
        asked += [("value", value if isinstance(value, str) else orjson.dumps(value).decode())
                  for value in selection.get("values", ())]  # fmt: skip
        answer = yield from self._answered(Request("GET", f"{self._path}?{urlencode(asked)}", self._fresh()), None)
        found = document_of(answer, "entries", "next_cursor")
        return [(entry["key"], self._shown(entry["value"])) for entry in found["entries"]], found["next_cursor"]

    def outcome(self, written: Stored[T], *, wait: float = 0.0) -> Steps[Outcome]:
        """Ask what became of a write that processors finish; wait up to so many seconds for it."""
        place = f"/v1/directories/{quote(self._name, safe='')}/outcomes/{quote(written.key, safe='')}"
        path, deadline = f"{place}?{urlencode({'event': written.etag})}", time.monotonic() + wait
        while True:
            left = deadline - time.monotonic()
            patience = {"prefer": f"wait={max(0.0, min(left, self._wait)):.3f}"}
            answer = yield from self._answered(Request("GET", path, patience), written.key)
            found = document_of(answer, "state", "value")
            if left <= self._wait or found["state"] != _PENDING:
                return Outcome(state=found["state"], value=found["value"])

    def requests(self, operations: Iterable[Operation]) -> Iterator[Request]:
        """Return bulk requests, each as large as is good. Raises WriteRefused for a value that can't be encoded."""
        lines, size = list[bytes](), 0
        for operation in operations:
            lines.append(self._line(operation))
            size += len(lines[-1])
            if len(lines) == _MOST_LINES or size > _MOST_BYTES:
                yield self._bulk(lines)
                lines, size = [], 0
        if lines:
            yield self._bulk(lines)

    def bulk(self, request: Request) -> Steps[list[WriteResult | CompactoryError]]:
        """Send a bulk request; return the result of each line."""
        answer = yield from self._answered(request, None)
        try:
            results = [self._result(orjson.loads(line)) for line in answer.content.splitlines()]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise foreign(answer) from error
        if len(results) != (request.body or b"").count(b"\n") + 1:
            raise foreign(answer)
        return results

    def put(self, key: str, value: T, **options: Unpack[WriteOptions]) -> Steps[Stored[T]]:
        """Create or replace an entry."""
        answer = yield from self._written("put", key, self._encoding.record(key, value)[1], options)
        return self._stored(key, answer)

    def patch(self, key: str, changes: Mapping[str, Any], **options: Unpack[WriteOptions]) -> Steps[Stored[T]]:
        """Merge changes into an entry (RFC 7396)."""
        answer = yield from self._written("patch", key, orjson.dumps(changes), options)
        return self._stored(key, answer)

    def post(self, value: T, **options: Unpack[WriteOptions]) -> Steps[Stored[T]]:
        """Create an entry whose key the server derives from its fields."""
        answer = yield from self._written("post", None, self._encoding.record("-", value)[1], options)
        return self._stored(unquote(header_of(answer, "location").removeprefix(f"{self._path}/")), answer)

    def delete(self, key: str, **options: Unpack[WriteOptions]) -> Steps[Token]:
        """Remove an entry."""
        answer = yield from self._written("delete", key, None, options)
        return Token.parse(header_of(answer, "compactory-offset"))

    def _written(
        self, kind: Kind, key: str | None, body: bytes | None, options: WriteOptions
    ) -> Steps[httpx2.Response]:
        headers = {"idempotency-key": options.get("idempotency_key") or uuid4().hex}
        if body is not None:
            headers["content-type"] = "application/merge-patch+json" if kind == "patch" else "application/json"
        if (tag := options.get("if_match")) is not None:
            headers["if-match"] = tag if tag == "*" else f'"{tag}"'
        if options.get("create"):
            headers["if-none-match"] = "*"
        path = self._path if key is None else self._place(key)
        answer = yield from self._answered(Request(kind.upper(), path, headers, body), key)
        self._seen.note(Token.parse(header_of(answer, "compactory-offset")))
        return answer

    def _fresh(self) -> dict[str, str]:
        newest = self._seen.newest()
        return {"compactory-min-offset": newest, "prefer": f"wait={self._wait:g}"} if newest else {}

    def _shown(self, value: Any) -> T:
        """Return a value as it stands in a document."""
        if self._text and isinstance(value, str):
            return self._decode(value.encode())
        encoded = value.get("base64") if isinstance(value, dict) and value.keys() == {"base64"} else None
        return self._decode(orjson.dumps(value) if encoded is None else b64decode(encoded))

    def _line(self, operation: Operation) -> bytes:
        line: dict[str, Any] = {"op": operation.kind}
        if operation.kind == "patch":
            line["value"] = operation.value
        elif operation.kind != "delete":
            line["value"] = orjson.Fragment(self._encoding.record(operation.key or "-", operation.value)[1] or b"")
        for name, tags in (("if_match", operation.if_match), ("if_none_match", operation.if_none_match)):
            if tags is not None:
                line[name] = "*" if "*" in tags else ", ".join(f'"{tag}"' for tag in tags)
        texts = {"key": operation.key, "idempotency_key": operation.idempotency_key}
        return json_bytes(line | {name: text for name, text in texts.items() if text is not None})

    def _bulk(self, lines: Sequence[bytes]) -> Request:
        headers = {"content-type": "application/x-ndjson"}
        return Request("POST", f"{self._path}:bulkWrite", headers, b"\n".join(lines), repeatable=False)

    def _result(self, line: dict[str, Any]) -> WriteResult | CompactoryError:
        if "problem" in line:
            return failure_of(line["status"], orjson.dumps(line["problem"]), self._name, line.get("key"))
        token = Token.parse(line["offset"])
        self._seen.note(token)
        return WriteResult(key=line["key"], etag=line["etag"], token=token, created=line["status"] == 201)

    def _place(self, key: str) -> str:
        written = "%2E" * len(key) if key in (".", "..") else quote(key, safe="")  # a client would go up a folder
        return f"{self._path}/{written}"

    def _stored(self, key: str, answer: httpx2.Response) -> Stored[T]:
        etag, token = header_of(answer, "etag").strip('"'), Token.parse(header_of(answer, "compactory-offset"))
        return Stored(key=key, value=self._decode(answer.content), etag=etag, token=token)

    def _answered(self, request: Request, key: str | None) -> Steps[httpx2.Response]:
        """Send a request until it is answered for good or its time is over."""
        deadline, pause, sent = time.monotonic() + self._timeout, _FIRST_PAUSE, False
        while True:
            given = yield request
            if isinstance(given, httpx2.Response) and given.status_code < 300:
                return given
            error = self._failure(given, key)
            sent = sent or may_be_done(given)
            wait = max(pause * random.uniform(0.5, 1.0), pause_asked(given))  # noqa: S311 - spreads out a fleet
            given_up = time.monotonic() + wait > deadline or (sent and not request.repeatable)
            if not error.retryable or given_up:
                raise self._last(request, error, key) if sent and error.retryable else error
            yield wait
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _failure(self, given: Given, key: str | None) -> CompactoryError:
        if isinstance(given, httpx2.Response) and given.has_redirect_location:
            return foreign(given)
        if isinstance(given, httpx2.Response):
            return failure_of(given.status_code, given.content, self._name, key)
        if isinstance(given, httpx2.LocalProtocolError):
            return ConfigError(
                "the request can't be sent: HTTP takes no line breaks in an entity tag or Idempotency-Key"
            )
        return Unreachable("HTTP", f"the server was not reached: {type(given).__name__}; check its address")

    def _last(self, request: Request, error: CompactoryError, key: str | None) -> CompactoryError:
        """Return the error that says that a write may have happened, whatever the last answer was."""
        if request.method == "GET" or _unknown(error):
            return error
        told = f"directory {self._name!r}: whether it was written is not known ({error})"
        again = "send it with the same idempotency_key again" if request.repeatable else "read the entries of its lines"
        failed = WriteFailed.of_key(f"{told}; {again}", topic=self._name, key=key, unknown=True, cause=error)
        failed.__cause__ = error
        return failed


def _unknown(error: CompactoryError) -> bool:
    return isinstance(error, WriteFailed) and bool(error.unknown)

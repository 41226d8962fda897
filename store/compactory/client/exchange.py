"""What a client sends, in which order, and what it makes of the answers. No I/O: both clients drive these steps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

import httpx2
import orjson

from compactory.client.failures import failure_of
from compactory.codec.decoding import decoder
from compactory.codec.encoding import Encoding
from compactory.directory import Directory
from compactory.errors import CompactoryError, Unreachable, WriteFailed
from compactory.mastered.operation import Kind
from compactory.token import Token

__all__ = ["Exchange", "Request", "Seen", "Steps", "Stored", "WriteOptions"]

T = TypeVar("T")

_FIRST_PAUSE = 0.05  # seconds before the first repeat; doubled after each
_LONGEST_PAUSE = 1.0
_MOST_TOKENS = 100  # in one request


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


class WriteOptions(TypedDict, total=False):
    """What a write may demand.

    ``if_match``         the entry must have this entity tag; ``*``: it must exist
    ``create``           the entry must not exist
    ``idempotency_key``  the key of an earlier try, to be told its answer; by default each call has a new one
    """

    if_match: str | None
    create: bool
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None


Given = httpx2.Response | httpx2.TransportError | None
Steps = Generator[Request | float, Given, T]
"""Yields requests to send and seconds to pause; is given the answer, or the error of a request without one."""


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
        self._path = f"/v1/directories/{quote(directory.name, safe='')}/entries"
        self._decode: Callable[[bytes], T] = decoder(directory)
        self._encoding = Encoding(directory)
        self._timeout = timeout
        self._wait = wait
        self._seen = seen

    def read(self, key: str) -> Steps[Stored[T]]:
        """Look an entry up. Raises EntryMissing, WaitTimeout, Unreachable."""
        newest = self._seen.newest()
        headers = {"compactory-min-offset": newest, "prefer": f"wait={self._wait:g}"} if newest else {}
        answer = yield from self._answered(Request("GET", self._place(key), headers), key)
        return self._stored(key, answer)

    def write(self, kind: Kind, key: str | None, value: Any, options: WriteOptions) -> Steps[Stored[T]]:
        """Put, patch or post. Raises WriteRefused, Conflict, PreconditionFailed, EntryMissing, WriteFailed."""
        body = orjson.dumps(value) if kind == "patch" else self._encoding.record(key or "-", value)[1]
        media = "application/merge-patch+json" if kind == "patch" else "application/json"
        answer = yield from self._written(kind, key, body, {"content-type": media}, options)
        if key is None:  # it was derived
            key = unquote(answer.headers["location"].removeprefix(f"{self._path}/"))
        return self._stored(key, answer)

    def delete(self, key: str, options: WriteOptions) -> Steps[Token]:
        """Remove an entry. Raises what `write` does."""
        answer = yield from self._written("delete", key, None, {}, options)
        return Token.parse(answer.headers["compactory-offset"])

    def _written(
        self, kind: Kind, key: str | None, body: bytes | None, headers: dict[str, str], options: WriteOptions
    ) -> Steps[httpx2.Response]:
        headers["idempotency-key"] = options.get("idempotency_key") or uuid4().hex
        if (tag := options.get("if_match")) is not None:
            headers["if-match"] = tag if tag == "*" else f'"{tag}"'
        if options.get("create"):
            headers["if-none-match"] = "*"
        path = self._path if key is None else self._place(key)
        answer = yield from self._answered(Request(kind.upper(), path, headers, body), key)
        self._seen.note(Token.parse(answer.headers["compactory-offset"]))
        return answer

    def _place(self, key: str) -> str:
        return f"{self._path}/{quote(key, safe='')}"

    def _stored(self, key: str, answer: httpx2.Response) -> Stored[T]:
        etag, token = answer.headers["etag"].strip('"'), Token.parse(answer.headers["compactory-offset"])
        return Stored(key=key, value=self._decode(answer.content), etag=etag, token=token)

    def _answered(self, request: Request, key: str | None) -> Steps[httpx2.Response]:
        """Send a request until it is answered for good or its time is over."""
        deadline, pause, sent = time.monotonic() + self._timeout, _FIRST_PAUSE, False
        while True:
            given = yield request
            if isinstance(given, httpx2.Response) and given.status_code < 300:
                return given
            error = self._failure(given, key)
            sent = sent or not isinstance(given, httpx2.ConnectError | httpx2.Response) or _unknown(error)
            if not error.retryable or time.monotonic() + pause > deadline:
                raise self._last(request, error, key) if sent and error.retryable else error
            yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads out a fleet
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _failure(self, given: Given, key: str | None) -> CompactoryError:
        if isinstance(given, httpx2.Response):
            return failure_of(given.status_code, given.content, self._name, key)
        return Unreachable("HTTP", f"the server was not reached: {type(given).__name__}; check its address")

    def _last(self, request: Request, error: CompactoryError, key: str | None) -> CompactoryError:
        """Return the error that says that a write may have happened, whatever the last try was told."""
        if request.method == "GET" or _unknown(error):
            return error
        told = f"directory {self._name!r}: whether it was written is not known ({error}); send it with the same"
        failed = WriteFailed(f"{told} idempotency_key again", topic=self._name, unknown=(key or "",), cause=error)
        failed.__cause__ = error
        return failed


def _unknown(error: CompactoryError) -> bool:
    return isinstance(error, WriteFailed) and bool(error.unknown)

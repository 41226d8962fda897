"""Errors of requests over HTTP, the table from errors to statuses, and problem documents (RFC 9457).

A new error is a class here, and a row of `PROBLEMS` with its status and title.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, isfinite
from typing import Any, NamedTuple

import orjson

from compactory.errors import (
    BadRecord,
    BatchRefused,
    CompactoryError,
    ConfigError,
    Conflict,
    CursorConflict,
    DecodeError,
    EntryMissing,
    LeaseLost,
    NotReady,
    OrderRefused,
    PreconditionFailed,
    StaleData,
    StoreClosed,
    StoreFailed,
    UnknownDirectory,
    UnknownIndex,
    Unreachable,
    WaitTimeout,
    WatchExpired,
    WriteFailed,
    WriteRefused,
)

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:compactory:problem:"

Headers = list[tuple[bytes, bytes]]


class BadRequest(CompactoryError):
    """Parts of the request are wrong. ``problems`` lists each of them."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))


class Unauthorized(CompactoryError):
    """The request has no token, or one that the server does not know."""


class Forbidden(CompactoryError):
    """The token is valid, but does not allow this request."""


class Misdirected(CompactoryError):
    """The Host header names another machine: a web page may be asking through a name that it controls."""


class NoEntry(CompactoryError):
    """The directory has no entry of this key."""

    def __init__(self, directory: str, key: str) -> None:
        super().__init__(f"directory {directory!r} has no entry {key!r}")


class NoResource(CompactoryError):
    """There is nothing at this path."""


class OutcomeFailed(CompactoryError):
    """The write is in its topic, but the processors that finish it have failed. ``value`` is the outcome."""

    def __init__(self, directory: str, key: str, reason: object, value: Any) -> None:
        self.directory = directory
        self.value = value
        super().__init__(f"{key!r} was written, and its processing failed: {reason} (directory {directory!r})")


class MethodRefused(CompactoryError):
    """The path does not take this method. ``allowed`` lists those that it takes, ``hint`` says what to do instead."""

    def __init__(self, method: str, allowed: str, hint: str = "") -> None:
        self.allowed = allowed
        super().__init__(f"{method} is not possible here; possible: {allowed}" + (hint and f". {hint}"))


class TooLarge(CompactoryError):
    """The request carries, or asks for, more than a request may."""


class HeadTooLarge(CompactoryError):
    """The request's line and headers are larger, or more, than a server takes."""


class TooSlow(CompactoryError):
    """The request was not complete within its time limit."""


class Overloaded(CompactoryError):
    """Requests and unread answers have reached their memory limit, or too many calls wait for a thread."""

    retryable = True


class TooManyConnections(CompactoryError):
    """The server has its highest number of connections, and each of them is in use."""

    retryable = True


class UnsupportedMedia(CompactoryError):
    """The Content-Type of the body is not one that the path takes, or the body is compressed."""


class Stopping(CompactoryError):
    """The server shuts down, so the request can't wait any longer."""

    retryable = True


class _Kind(NamedTuple):
    """A row of the table. ``name`` is the last part of the type URI."""

    error: type[Exception]
    status: int
    name: str
    title: str


# The first row whose class fits counts, so a subclass stands before its base.
PROBLEMS: tuple[_Kind, ...] = (
    _Kind(BadRecord, 502, "bad-record", "The newest record of this key is bad and no good value is known"),
    _Kind(NoEntry, 404, "no-entry", "No such entry"),
    _Kind(EntryMissing, 404, "no-entry", "No such entry"),
    _Kind(UnknownDirectory, 404, "unknown-directory", "No such directory"),
    _Kind(NoResource, 404, "no-resource", "Nothing is here"),
    _Kind(UnknownIndex, 400, "unknown-index", "No such index"),
    _Kind(BadRequest, 400, "bad-request", "The request is malformed"),
    _Kind(ConfigError, 400, "bad-request", "The request is malformed"),
    _Kind(Unauthorized, 401, "unauthorized", "A valid bearer token is needed"),
    _Kind(Forbidden, 403, "forbidden", "The token does not allow this"),
    _Kind(MethodRefused, 405, "method-not-allowed", "The method is not possible here"),
    _Kind(TooSlow, 408, "too-slow", "The request did not come within its time"),
    _Kind(CursorConflict, 409, "cursor-conflict", "The stored cursor is not the expected one"),
    _Kind(Conflict, 409, "conflict", "Another entry does not allow this write"),
    _Kind(OrderRefused, 409, "refused", "The order is not possible in the present state"),
    _Kind(WatchExpired, 410, "changes-gone", "Changes since the cursor are not kept any more"),
    _Kind(PreconditionFailed, 412, "precondition-failed", "The condition of the request does not hold for the entry"),
    _Kind(WaitTimeout, 412, "not-fresh-enough", "The store has not read that far yet"),
    _Kind(TooLarge, 413, "too-large", "More than one request may carry or ask for"),
    _Kind(UnsupportedMedia, 415, "unsupported-media-type", "The body must be application/json"),
    _Kind(Misdirected, 421, "misdirected", "This server does not go by that name"),
    _Kind(WriteRefused, 422, "invalid-write", "The entry breaks a rule of the directory"),
    _Kind(OutcomeFailed, 424, "outcome-failed", "The write was made, and its processing failed"),
    _Kind(HeadTooLarge, 431, "head-too-large", "The request's line and headers are too large"),
    _Kind(DecodeError, 502, "undecodable", "A value can't be decoded"),
    _Kind(WriteFailed, 503, "write-failed", "Kafka did not confirm the write"),
    _Kind(LeaseLost, 503, "not-owner", "Another process writes this directory"),
    _Kind(StaleData, 503, "stale", "The data is older than was asked for"),
    _Kind(NotReady, 503, "not-ready", "The store has not read everything yet"),
    _Kind(Stopping, 503, "stopping", "The server shuts down"),
    _Kind(Unreachable, 503, "unreachable", "Kafka was not reached in time"),
    _Kind(Overloaded, 503, "overloaded", "The server holds as many bytes as it may"),
    _Kind(TooManyConnections, 503, "too-many-connections", "The server has too many connections"),
    _Kind(StoreFailed, 503, "store-failed", "The store failed"),
    _Kind(StoreClosed, 503, "store-closed", "The store is closed"),
)
_UNEXPECTED = _Kind(Exception, 500, "internal", "An error of the server; its log says more")


class Answer(NamedTuple):
    """Status, headers and body."""

    status: int
    headers: Headers
    body: bytes


def problem(error: BaseException) -> Answer:
    """Return the answer for an error. The answer of an unexpected error (500) shows no details.

    A refused batch has the status of its refused operation.
    """
    cause = error.error if isinstance(error, BatchRefused) else error
    kind = next((kind for kind in PROBLEMS if isinstance(cause, kind.error)), _UNEXPECTED)
    document: dict[str, Any] = {"type": _TYPE + kind.name, "title": kind.title, "status": kind.status}
    if kind is not _UNEXPECTED:
        document |= {"detail": str(error), **_fields(error)}
    body = orjson.dumps(document)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="compactory"'))
    elif isinstance(error, MethodRefused):
        headers.append((b"allow", error.allowed.encode()))
    elif kind.status == 503:
        headers.append((b"retry-after", b"1"))
    return Answer(kind.status, headers, body)


def _fields(error: BaseException) -> dict[str, Any]:
    """Return the fields that only this kind of problem has."""
    match error:
        case BadRequest() | ConfigError() | WriteRefused() if len(error.problems) > 1:
            return {"errors": error.problems}
        case BatchRefused():
            problems = error.error.problems if isinstance(error.error, WriteRefused) else [str(error.error)]
            return {"errors": [{"index": error.index, "key": error.key, "detail": text} for text in problems]}
        case CursorConflict():
            return {"cursor": error.cursor}
        case WatchExpired():
            return {"cursor": str(error.cursor)}
        case WaitTimeout():
            gap = error.gap.items()
            return {"gap": [{"topic": part.topic, "partition": part.partition, "missing": n} for part, n in gap]}
        case StaleData():
            age = ceil(error.age * 1000) / 1000 if isfinite(error.age) else None  # rounded up: never younger than it is
            return {"age_seconds": age, "max_age_seconds": error.max_age}
        case WriteFailed():
            return {"outcome": "unknown" if error.unknown else "not written"}
        case LeaseLost():
            return {"outcome": "not written"}
        case OutcomeFailed():
            return {"outcome": "written", "directory": error.directory, "value": error.value}
    return {}

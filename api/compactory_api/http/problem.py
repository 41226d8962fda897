"""The table from errors to HTTP statuses, and the problem documents (RFC 9457, ``application/problem+json``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import orjson

from compactory.errors import (
    BadRecord,
    ConfigError,
    Conflict,
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

from .errors import (
    BadRequest,
    Forbidden,
    HeadTooLarge,
    MethodRefused,
    Misdirected,
    NoEntry,
    NoResource,
    OutcomeFailed,
    Overloaded,
    Stopping,
    TooLarge,
    TooManyConnections,
    TooSlow,
    Unauthorized,
    UnsupportedMedia,
)

__all__ = ["MEDIA_TYPE", "PROBLEMS", "Answer", "kind_of", "problem"]

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:compactory:problem:"
_RETRY_AFTER = b"1"  # seconds

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A row of the table: an error class, its status, the last part of its type URI, its title."""

    error: type[Exception]
    status: int
    name: str
    title: str
    headers: Callable[[Any], Headers] = lambda _error: []
    fields: Callable[[Any], dict[str, Any]] = lambda _error: {}


def _problems(error: BadRequest | ConfigError | WriteRefused) -> dict[str, Any]:
    return {"errors": error.problems} if len(error.problems) > 1 else {}


def _gap(error: WaitTimeout) -> dict[str, Any]:
    return {"gap": [{"topic": part.topic, "partition": part.partition, "missing": n} for part, n in error.gap.items()]}


def _age(error: StaleData) -> dict[str, Any]:
    age = ceil(error.age * 1000) / 1000 if isfinite(error.age) else None  # rounded up: it never looks young enough
    return {"age_seconds": age, "max_age_seconds": error.max_age}


def _cursor(error: WatchExpired) -> dict[str, Any]:
    return {"cursor": str(error.cursor)}


def _outcome(error: WriteFailed) -> dict[str, Any]:
    return {"outcome": "unknown" if error.unknown else "not written"}


def _not_written(_error: Exception) -> dict[str, Any]:
    return {"outcome": "not written"}


def _failed(error: OutcomeFailed) -> dict[str, Any]:
    return {"outcome": "written", "directory": error.directory, "value": error.value}


def _retry(_error: Exception) -> Headers:
    return [(b"retry-after", _RETRY_AFTER)]


def _challenge(_error: Exception) -> Headers:
    return [(b"www-authenticate", b'Bearer realm="compactory"')]


def _allow(error: MethodRefused) -> Headers:
    return [(b"allow", error.allowed.encode())]


# The first row whose class fits counts, so a subclass stands before its base.
PROBLEMS: tuple[_Kind, ...] = (
    _Kind(BadRecord, 502, "bad-record", "The newest record of this key is bad and no good value is known"),
    _Kind(NoEntry, 404, "no-entry", "No such entry"),
    _Kind(EntryMissing, 404, "no-entry", "No such entry"),
    _Kind(UnknownDirectory, 404, "unknown-directory", "No such directory"),
    _Kind(NoResource, 404, "no-resource", "Nothing is here"),
    _Kind(UnknownIndex, 400, "unknown-index", "No such index"),
    _Kind(BadRequest, 400, "bad-request", "The request is malformed", fields=_problems),
    _Kind(ConfigError, 400, "bad-request", "The request is malformed", fields=_problems),
    _Kind(Unauthorized, 401, "unauthorized", "A valid bearer token is needed", headers=_challenge),
    _Kind(Forbidden, 403, "forbidden", "The token does not allow this"),
    _Kind(MethodRefused, 405, "method-not-allowed", "The method is not possible here", headers=_allow),
    _Kind(TooSlow, 408, "too-slow", "The request did not come within its time"),
    _Kind(Conflict, 409, "conflict", "Another entry does not allow this write"),
    _Kind(OrderRefused, 409, "refused", "The order is not possible in the present state"),
    _Kind(WatchExpired, 410, "changes-gone", "Changes since the cursor are not kept any more", fields=_cursor),
    _Kind(PreconditionFailed, 412, "precondition-failed", "The condition of the request does not hold for the entry"),
    _Kind(WaitTimeout, 412, "not-fresh-enough", "The store has not read that far yet", fields=_gap),
    _Kind(TooLarge, 413, "too-large", "More than one request may carry or ask for"),
    _Kind(UnsupportedMedia, 415, "unsupported-media-type", "The body must be application/json"),
    _Kind(Misdirected, 421, "misdirected", "This server does not go by that name"),
    _Kind(WriteRefused, 422, "invalid-write", "The entry breaks a rule of the directory", fields=_problems),
    _Kind(OutcomeFailed, 424, "outcome-failed", "The write was made, and its processing failed", fields=_failed),
    _Kind(HeadTooLarge, 431, "head-too-large", "The request's line and headers are too large"),
    _Kind(DecodeError, 502, "undecodable", "A value can't be decoded"),
    _Kind(WriteFailed, 503, "write-failed", "Kafka did not confirm the write", headers=_retry, fields=_outcome),
    _Kind(LeaseLost, 503, "not-owner", "Another process writes this directory", headers=_retry, fields=_not_written),
    _Kind(StaleData, 503, "stale", "The data is older than was asked for", headers=_retry, fields=_age),
    _Kind(NotReady, 503, "not-ready", "The store has not read everything yet", headers=_retry),
    _Kind(Stopping, 503, "stopping", "The server shuts down", headers=_retry),
    _Kind(Unreachable, 503, "unreachable", "Kafka was not reached in time", headers=_retry),
    _Kind(Overloaded, 503, "overloaded", "The server holds as many bytes as it may", headers=_retry),
    _Kind(TooManyConnections, 503, "too-many-connections", "The server has too many connections", headers=_retry),
    _Kind(StoreFailed, 503, "store-failed", "The store failed", headers=_retry),
    _Kind(StoreClosed, 503, "store-closed", "The store is closed", headers=_retry),
)
_UNEXPECTED = _Kind(Exception, 500, "internal", "An error of the server; its log says more")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that reports a problem."""

    status: int
    headers: Headers
    body: bytes


def kind_of(error: BaseException) -> _Kind:
    """Return the row of an error; an error outside the table is a fault of the server (500)."""
    return next((kind for kind in PROBLEMS if isinstance(error, kind.error)), _UNEXPECTED)


def problem(error: BaseException) -> Answer:
    """Return the answer for an error. The answer of an unexpected error shows no details."""
    kind = kind_of(error)
    document: dict[str, Any] = {"type": _TYPE + kind.name, "title": kind.title, "status": kind.status}
    if kind is not _UNEXPECTED:
        document |= {"detail": str(error), **kind.fields(error)}
    body = orjson.dumps(document)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *kind.headers(error),
    ]
    return Answer(kind.status, headers, body)

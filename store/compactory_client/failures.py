"""Answers that refuse a request, as the errors that the server itself raised. Pure."""

from __future__ import annotations

from typing import Any

import httpx2
import orjson

from compactory.errors import (
    BadRecord,
    CompactoryError,
    ConfigError,
    Conflict,
    EntryMissing,
    NotReady,
    PreconditionFailed,
    UnknownDirectory,
    Unreachable,
    WaitTimeout,
    WriteFailed,
    WriteRefused,
)
from compactory.records import Partition

__all__ = ["Given", "document_of", "failure_of", "foreign", "header_of", "may_be_done", "pause_asked"]

Given = httpx2.Response | httpx2.TransportError | None
"""An answer, the error of a request without one, or nothing after a pause."""

_PROBLEM = "urn:compactory:problem:"
_TOO_MANY = 429  # a proxy's: the request went no further
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)

_PLAIN: dict[str, type[CompactoryError]] = {
    "bad-record": BadRecord,
    "conflict": Conflict,
    "no-entry": EntryMissing,
    "not-ready": NotReady,
    "precondition-failed": PreconditionFailed,
    "unknown-directory": UnknownDirectory,
}


def failure_of(status: int, body: bytes, directory: str, key: str | None) -> CompactoryError:
    """Return the error of an answer that is not a success; of what is no problem document, by its status."""
    document = _document(body)
    kind = str(document.get("type", "")).removeprefix(_PROBLEM)
    detail = str(document.get("detail") or document.get("title") or f"the server answered HTTP {status}")
    problems = list(map(str, document.get("errors") or [detail]))
    if kind in _PLAIN:
        return _PLAIN[kind](detail)
    if kind == "invalid-write":
        return WriteRefused(problems)
    if kind == "not-fresh-enough":
        gap = document.get("gap") or []
        return WaitTimeout(detail, {Partition(item["topic"], item["partition"]): item["missing"] for item in gap})
    if kind == "write-failed":
        return WriteFailed.of_key(detail, topic=directory, key=key, unknown=document.get("outcome") == "unknown")
    if status >= 500 or status == _TOO_MANY:
        return Unreachable("HTTP", f"{detail} (HTTP {status})")
    return ConfigError(problems)


def may_be_done(given: Given) -> bool:
    """Return True if the server may have carried out a failed request. A proxy's 502 or 504 leaves that open."""
    if not isinstance(given, httpx2.Response):
        return not isinstance(given, _UNSENT)
    document = _document(given.content)
    kind, outcome = str(document.get("type", "")), document.get("outcome")
    is_refused = kind.startswith(_PROBLEM) and kind != f"{_PROBLEM}internal" and outcome != "unknown"
    return given.status_code >= 500 and not is_refused


def pause_asked(given: Given) -> float:
    """Return the seconds for which a proxy asks to be spared; the server's own Retry-After is for those who poll."""
    if isinstance(given, httpx2.Response) and given.status_code == _TOO_MANY:
        asked = given.headers.get("retry-after", "")
        return float(asked) if asked.isdecimal() else 0.0
    return 0.0


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def header_of(answer: httpx2.Response, name: str) -> str:
    """Return a header that each success of this kind has. Raises ConfigError for an answer of another server."""
    value: str | None = answer.headers.get(name)
    if value is None:
        raise foreign(answer)
    return value


def document_of(answer: httpx2.Response, *names: str) -> dict[str, Any]:
    """Return the JSON object of a success, which has these names. Raises as `header_of`."""
    document = _document(answer.content)
    if not document.keys() >= {*names}:
        raise foreign(answer)
    return document


def foreign(answer: httpx2.Response) -> ConfigError:
    """Return the error for a success or a redirect, which `compactory serve` does not give."""
    place = answer.headers.get("location")
    kind = f"to {place}" if place else answer.headers.get("content-type") or "no type"
    return ConfigError(
        f"{answer.request.url} was not answered by compactory serve (HTTP {answer.status_code}, {kind}): check the url"
        " of the client, and what stands between it and the server"
    )

"""Maps replies of a server to the errors that the server itself raised. Pure."""

from __future__ import annotations

from typing import Any

import httpx2
import orjson

from compactory.errors import (
    BadRecord,
    BatchRefused,
    CompactoryError,
    ConfigError,
    Conflict,
    CursorConflict,
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

__all__ = [
    "Reply",
    "document_of",
    "error_of_document",
    "error_of_reply",
    "header_of",
    "may_have_run",
    "proxy_retry_after",
    "wrong_server",
]

Reply = httpx2.Response | httpx2.TransportError
"""The response to a request, or the error of a request without a response."""

_PROBLEM = "urn:compactory:problem:"
_TOO_MANY = 429  # of a proxy that did not forward the request
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)

_BY_KIND: dict[str, type[CompactoryError]] = {
    "bad-record": BadRecord,
    "conflict": Conflict,
    "no-entry": EntryMissing,
    "not-ready": NotReady,
    "precondition-failed": PreconditionFailed,
    "unknown-directory": UnknownDirectory,
}


def error_of_reply(reply: Reply, directory: str, key: str | None) -> CompactoryError:
    """Return the error of a reply that is not a success."""
    if isinstance(reply, httpx2.Response) and reply.has_redirect_location:
        return wrong_server(reply)
    if isinstance(reply, httpx2.Response):
        return error_of_document(reply.status_code, _document(reply.content), directory, key)
    if isinstance(reply, httpx2.LocalProtocolError):
        return ConfigError("the request can't be sent: HTTP allows no line breaks in an entity tag or Idempotency-Key")
    return Unreachable("HTTP", f"the server was not reached: {type(reply).__name__}; check its address")


def error_of_document(status: int, document: dict[str, Any], directory: str, key: str | None) -> CompactoryError:
    """Return the error that a problem document describes; of a document that is none, the error of its status."""
    kind = str(document.get("type", "")).removeprefix(_PROBLEM)
    detail = str(document.get("detail") or document.get("title") or f"the server answered HTTP {status}")
    errors: list[Any] = document.get("errors") or [detail]
    if isinstance(errors[0], dict):  # of a batch
        details = [str(error.get("detail")) for error in errors]
        cause = error_of_document(status, document | {"detail": details[0], "errors": details}, directory, key)
        return BatchRefused(errors[0].get("index", 0), errors[0].get("key"), cause)
    problems = list(map(str, errors))
    if kind in _BY_KIND:
        return _BY_KIND[kind](detail)
    if kind == "cursor-conflict":
        return CursorConflict(detail, document.get("cursor"))
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


def may_have_run(reply: Reply) -> bool:
    """Return True if the server may have carried out a failed request. After a proxy's 502 or 504 it may have."""
    if not isinstance(reply, httpx2.Response):
        return not isinstance(reply, _UNSENT)
    document = _document(reply.content)
    kind, outcome = str(document.get("type", "")), document.get("outcome")
    is_refused = kind.startswith(_PROBLEM) and kind != f"{_PROBLEM}internal" and outcome != "unknown"
    return reply.status_code >= 500 and not is_refused


def proxy_retry_after(reply: Reply) -> float:
    """Return the seconds to wait before a repeat that a proxy's 429 names, else 0."""
    if isinstance(reply, httpx2.Response) and reply.status_code == _TOO_MANY:
        seconds = reply.headers.get("retry-after", "")
        return float(seconds) if seconds.isdecimal() else 0.0
    return 0.0


def header_of(response: httpx2.Response, name: str) -> str:
    """Return a header that each success of this kind has. Raises ConfigError for a response of another server."""
    value: str | None = response.headers.get(name)
    if value is None:
        raise wrong_server(response)
    return value


def document_of(response: httpx2.Response, *names: str) -> dict[str, Any]:
    """Return the JSON object of a success. Raises ConfigError unless it has these names."""
    document = _document(response.content)
    if not document.keys() >= {*names}:
        raise wrong_server(response)
    return document


def wrong_server(response: httpx2.Response) -> ConfigError:
    """Return the error for a success or a redirect that `compactory serve` never sends."""
    location = response.headers.get("location")
    kind = f"to {location}" if location else response.headers.get("content-type") or "no type"
    return ConfigError(
        f"{response.request.url} was not answered by compactory serve (HTTP {response.status_code}, {kind}): check the"
        " url of the client, and what stands between it and the server"
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}

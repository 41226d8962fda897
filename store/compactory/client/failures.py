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

__all__ = ["document_of", "failure_of", "foreign", "header_of"]

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
    kind = str(document.get("type", "")).rpartition(":")[2]
    told = str(document.get("detail") or document.get("title") or f"the server answered HTTP {status}")
    problems = list(map(str, document.get("errors") or [told]))
    if kind in _PLAIN:
        return _PLAIN[kind](told)
    if kind == "invalid-write":
        return WriteRefused(problems)
    if kind == "not-fresh-enough":
        gap = document.get("gap") or []
        return WaitTimeout(told, {Partition(item["topic"], item["partition"]): item["missing"] for item in gap})
    if kind == "write-failed":
        return WriteFailed.of_key(told, topic=directory, key=key, unknown=document.get("outcome") == "unknown")
    return ConfigError(problems) if status < 500 else Unreachable("HTTP", f"{told} (HTTP {status})")


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def header_of(answer: httpx2.Response, name: str) -> str:
    """Return a header that each success of this kind has. Raises ConfigError for an answer of another server."""
    found: str | None = answer.headers.get(name)
    if found is None:
        raise foreign(answer)
    return found


def document_of(answer: httpx2.Response, *names: str) -> dict[str, Any]:
    """Return the JSON object of a success, which has these names. Raises as `header_of`."""
    found = _document(answer.content)
    if not found.keys() >= {*names}:
        raise foreign(answer)
    return found


def foreign(answer: httpx2.Response) -> ConfigError:
    """Return the error for a success that `compactory serve` does not give."""
    kind = answer.headers.get("content-type") or "no type"
    return ConfigError(
        f"{answer.request.url} was not answered by compactory serve (HTTP {answer.status_code}, {kind}): check the url"
        " of the client, and what stands between it and the server"
    )

"""Answers that refuse a request, as the errors that the server itself raised. Pure."""

from __future__ import annotations

from typing import Any

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

__all__ = ["failure_of"]

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

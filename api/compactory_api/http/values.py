"""Values in answers: the bytes of the topic, or the same value within a JSON document."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import orjson

from compactory.codec.whole_numbers import beyond_64_bits
from compactory.directory import Directory

__all__ = ["content_type", "embedder", "shower", "text_or_base64"]


def content_type(directory: Directory[Any]) -> bytes:
    """Return the media type of a directory's values: JSON, unless it is declared to hold text or plain bytes."""
    if directory.decode is str:
        return b"text/plain; charset=utf-8"
    if directory.decode is bytes:
        return b"application/octet-stream"
    return b"application/json"


def embedder(directory: Directory[Any]) -> Callable[[bytes], Any]:
    """Return the function that makes a value part of a document for orjson.

    JSON goes in as it is in the topic, without being written anew (numbers keep their spelling); text becomes a
    string; bytes, and what turns out not to be JSON, become ``{"base64": …}``.
    """
    if directory.decode is str:
        return lambda value: value.decode(errors="replace")
    if directory.decode is bytes:
        return _base64
    show = shower(directory)
    return _json if show is None else lambda value: _json(show(value))


def shower(directory: Directory[Any]) -> Callable[[bytes], bytes] | None:
    """Return the function that takes the internal fields out of a value, None for a directory without any."""
    rules = directory.rules
    if rules is None or not rules.internal:
        return None

    def show(value: bytes) -> bytes:
        if beyond_64_bits(value) is not None:  # orjson would round the number
            return json.dumps(rules.shown(json.loads(value)), ensure_ascii=False, separators=(",", ":")).encode()
        document = orjson.loads(value)
        shown = rules.shown(document)
        return value if shown is document else orjson.dumps(shown)

    return show


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return a field that keeps the bytes exactly: UTF-8 text under ``name``, other bytes as ``name_base64``."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _json(value: bytes) -> Any:
    try:
        # Parsed although the store has done so: it may be told not to (validate="read"), and one value that is not
        # JSON would break the whole document. 0.3 µs a value.
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return _base64(value)
    return orjson.Fragment(value)


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}

"""Values in answers: the bytes of the topic, or the same value within a JSON document."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
from fastapi import Response

from compactory.codec.decoding import decode_json
from compactory.directory import Directory

__all__ = ["content_type", "embedder", "json_response", "shower", "text_or_base64"]


def json_response(document: bytes | dict[str, Any], status: int = 200) -> Response:
    """Return an answer with a JSON document, or its bytes, that no cache keeps."""
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


def content_type(directory: Directory[Any]) -> bytes:
    """Return the media type of a directory's values, by its ``decode``: text, bytes, or else JSON."""
    if directory.decode is str:
        return b"text/plain; charset=utf-8"
    if directory.decode is bytes:
        return b"application/octet-stream"
    return b"application/json"


def embedder(directory: Directory[Any]) -> Callable[[bytes], Any]:
    """Return the function that turns a raw value into a part of a document for orjson.

    JSON is copied from the topic byte by byte, so numbers keep their spelling. Text becomes a string. Bytes, and values
    that are not JSON, become ``{"base64": …}``.
    """
    if directory.decode is str:
        return lambda value: value.decode(errors="replace")
    if directory.decode is bytes:
        return _base64
    show = shower(directory)
    return _json_fragment if show is None else lambda value: _json_fragment(show(value))


def shower(directory: Directory[Any]) -> Callable[[bytes], bytes] | None:
    """Return the function that removes the internal fields from a raw value; None for a directory without any."""
    rules = directory.rules
    if rules is None or not rules.internal:
        return None

    def show(value: bytes) -> bytes:
        document = decode_json(value)
        shown = rules.shown(document)
        return value if shown is document else msgspec.json.encode(shown)

    return show


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return a field that keeps the bytes exactly: UTF-8 text under ``name``, other bytes as ``name_base64``."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _json_fragment(value: bytes) -> Any:
    try:
        # One value that is not JSON would break the whole document, and a store with validate="read" has not parsed
        # it. Parsing takes 0.3 µs a value.
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return _base64(value)
    return orjson.Fragment(value)


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}

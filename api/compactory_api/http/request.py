"""The path and the headers of a request, as the client sent them. Only this module percent-decodes, exactly once."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from .errors import BadRequest

__all__ = [
    "DIRECTORIES",
    "ENTRIES",
    "decode_segment",
    "joined_headers",
    "raw_path",
    "routed_directory",
    "text_headers",
]

DIRECTORIES = b"/v1/directories/"
ENTRIES = b"/entries/"
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def raw_path(scope: Any) -> bytes:
    """Return the undecoded path, without query string and without the application's mount point."""
    raw: bytes | None = scope.get("raw_path")
    root = scope.get("root_path")
    if raw is not None and not root:
        return raw
    if raw is None:  # optional in ASGI; such a server has lost the difference between / and %2F
        raw = quote(scope["path"]).encode()
    return raw.removeprefix(quote(root or "").encode())


def routed_directory(scope: Any) -> str | None:
    """Return the directory in the path as FastAPI reads it: FastAPI decodes a path before it matches routes."""
    path: str = scope["path"]
    _, prefix, segments = path.partition("/v1/directories/")
    return segments.partition("/")[0] if prefix else None


def decode_segment(raw: bytes) -> str:
    """Percent-decode a part of a path. Raises BadRequest for a broken escape and for bytes that are not UTF-8."""
    if b"%" not in raw and raw.isascii():
        return raw.decode()
    if not raw.isascii():
        raise BadRequest("the path holds bytes that must be percent-encoded")
    if _BROKEN_ESCAPE.search(raw):
        raise BadRequest("the path holds a % that is not followed by two hexadecimal digits; a percent sign is %25")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadRequest("the path does not decode to UTF-8 text, which every key is") from None


def joined_headers(headers: Iterable[tuple[bytes, bytes]], names: Container[bytes] | None = None) -> dict[bytes, bytes]:
    """Return the headers of these names, or all. A header sent several times becomes one list (RFC 9110, 5.3)."""
    values: dict[bytes, bytes] = {}
    for name, value in headers:
        if names is None or name in names:
            values[name] = value if name not in values else values[name] + b", " + value
    return values


def text_headers(scope: Any) -> dict[str, str]:
    """Return all headers of a request as text; see `joined_headers`."""
    headers = joined_headers(scope["headers"])
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}

"""Paths as the client sent them. This module alone percent-decodes a key, exactly once."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from .errors import BadRequest

__all__ = ["DIRECTORIES", "ENTRIES", "decode_segment", "raw_path", "routed_directory"]

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
    """Return the directory that the framework will find in the path, which it decodes before it looks."""
    path: str = scope["path"]
    _, found, rest = path.partition("/v1/directories/")
    return rest.partition("/")[0] if found else None


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

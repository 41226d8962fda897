"""The path and the headers of a request, as the client sent them. Only this module percent-decodes, exactly once."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes

from pydantic import BaseModel, ValidationError

from .limits import HELD_BYTES
from .problem import BadRequest, TooLarge, UnsupportedMedia

__all__ = [
    "DIRECTORIES",
    "ENTRIES",
    "check_media",
    "decode_segment",
    "joined_headers",
    "parse_body",
    "raw_path",
    "read_body",
    "routed_directory",
    "text_headers",
]

M = TypeVar("M", bound=BaseModel)

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


def check_media(headers: Mapping[str, str], *allowed: str) -> None:
    """Raise UnsupportedMedia for a body of another type, and for a compressed one.

    A page of another host can't send a body of type JSON unless the browser has asked this server first.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in allowed:
        raise UnsupportedMedia(f"the body is {media_type or 'of no type'}; send Content-Type: {allowed[0]}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("the body is compressed; send it as it is")


async def read_body(scope: Any, receive: Any, most_bytes: int) -> bytes:
    """Return the whole body. It counts in the server's budget until the request has its answer.

    Raises TooLarge above ``most_bytes``, Overloaded where the budget has no room for it, BadRequest if the client
    has gone.
    """
    held_bytes = scope[HELD_BYTES]
    body = bytearray()
    declared_size = next((size for name, size in scope["headers"] if name == b"content-length"), b"0")
    if int(declared_size) > most_bytes:
        raise TooLarge(f"the body is larger than {most_bytes >> 20} MiB")
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the connection ended before the body was complete")
        part = message.get("body", b"")
        if len(body) + len(part) > most_bytes:
            raise TooLarge(f"the body is larger than {most_bytes >> 20} MiB")
        held_bytes.grow(len(part))
        body += part
        if not message.get("more_body", False):
            return bytes(body)


def parse_body(model: type[M], body: bytes) -> M:
    """Return the JSON of a body as a model. Raises BadRequest with every problem."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise BadRequest(
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors(include_url=False)
        ) from None

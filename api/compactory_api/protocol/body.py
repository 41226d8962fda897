"""The body of a request."""

from __future__ import annotations

from typing import Any

from starlette.requests import ClientDisconnect

from .budget import HELD_BYTES
from .http_errors import TooLarge

__all__ = ["read_body"]


async def read_body(scope: Any, receive: Any, most_bytes: int) -> bytes:
    """Return the whole body. It counts in the server's budget until the request has its answer.

    Raises TooLarge above ``most_bytes``, Overloaded where the server has no room for it, ClientDisconnect.
    """
    held_bytes = scope[HELD_BYTES]
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        if len(body) + len(part) > most_bytes:
            raise TooLarge(f"the body is larger than {most_bytes >> 20} MiB")
        held_bytes.grow(len(part))
        body += part
        if not message.get("more_body", False):
            return bytes(body)

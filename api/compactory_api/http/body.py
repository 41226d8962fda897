"""The body of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect

from .budget import HELD_BYTES
from .errors import TooLarge, UnsupportedMedia

__all__ = ["check_media", "read_body"]


def check_media(headers: Mapping[str, str], *allowed: str) -> None:
    """Raise UnsupportedMedia for a body of another type, and for a compressed one.

    A body has to say that it is JSON: a web page of another host can't, without the browser asking us first.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in allowed:
        raise UnsupportedMedia(f"the body is {kind or 'of no type'}; send Content-Type: {allowed[0]}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("the body is compressed; send it as it is")


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

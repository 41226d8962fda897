"""Bodies of requests, and the memory that requests and answers of a server may take together."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from starlette.requests import ClientDisconnect

from . import limits
from .errors import Overloaded, TooLarge, UnsupportedMedia

__all__ = ["HELD_BYTES", "Budget", "HeldBytes", "check_media", "read_body"]

HELD_BYTES = "compactory.held_bytes"  # where the ASGI scope has the `HeldBytes` of a request


class Budget:
    """Counts the bytes of bodies that are being read or worked on, and of answers that clients have not read yet.

    Owned by the event loop. ``is_full``: True while new requests are refused, except those for probes and metrics.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.is_full = False

    def add(self, size: int) -> None:
        """Count ``size`` bytes that are in memory already; a negative size releases bytes."""
        self.used_bytes += size
        self.is_full = self.used_bytes >= limits.IN_FLIGHT_BYTES

    def check(self, size: int = 0) -> None:
        """Raise Overloaded if the budget is full, or has no room for ``size`` bytes."""
        if self.is_full or self.used_bytes + size > limits.IN_FLIGHT_BYTES:
            raise Overloaded(
                f"requests under way and answers that nobody has read take {self.used_bytes >> 20} of"
                f" {limits.IN_FLIGHT_BYTES >> 20} MiB; ask again, or another server"
            )


class HeldBytes:
    """The bytes of one request or connection in the budget. Use it in a ``with`` block, or release it by ``set(0)``."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.set(0)

    def grow(self, size: int) -> None:
        """Add ``size`` bytes. Raises Overloaded."""
        self._budget.check(size)
        self.set(self.size + size)

    def set(self, size: int) -> None:
        """Replace the number of bytes, also if the budget has no room for them."""
        self._budget.add(size - self.size)
        self.size = size


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

    Raises TooLarge above ``most_bytes``, Overloaded where the budget has no room for it, ClientDisconnect.
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

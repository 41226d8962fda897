"""Requests handed on to the server that owns a directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from compactory.errors import CompactoryError

__all__ = ["FORWARDED", "OWNER", "Answer", "Forwarding", "OwnerSilent", "OwnerUnreached", "StreamedAnswer"]

FORWARDED = "compactory-forwarded"  # says that another server sent the request: it must not be handed on again
OWNER = "compactory-owner"  # in the answer to such a request: a server of ours has answered

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""

StreamedAnswer = tuple[int, dict[str, str], bytes | AsyncIterator[bytes]]
"""The same; the body may come in parts."""

_THREADS = 32
_SECONDS = 3.0  # after which an owner counts as gone; its fence makes that safe
_BYTES_A_SECOND = 200_000  # of a body: so much longer may its answer take
_IDLE = 10.0  # seconds; servers close idle connections, and a request into a closed one may look answered by nobody
_SENT = ("authorization", "content-type", "if-match", "if-none-match", "idempotency-key", "prefer")
_RETURNED = ("content-type", "etag", "compactory-offset", "location", "retry-after", "cache-control", "allow")


class OwnerSilent(CompactoryError):
    """No answer came from the owner; the request may have been carried out."""


class OwnerUnreached(OwnerSilent):
    """Nobody at the owner's address is the owner: the request was not carried out."""


class Forwarding:
    """Connections to owners, kept by a few threads. For one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "compactory-forward")
        self._kept: list[tuple[str, HTTPConnection, float]] = []

    async def send(self, url: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the owner's status, headers and body. Raises OwnerSilent."""
        sent = {name: headers[name] for name in _SENT if name in headers} | {FORWARDED: "1"}
        place = urlsplit(url)
        sent["host"] = place.netloc
        loop, whole = asyncio.get_running_loop(), place.path.rstrip("/") + path
        return await loop.run_in_executor(self._threads, self._ask, url, method, whole, sent, body)

    def close(self) -> None:
        """End the threads that wait for nothing, and their connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while self._kept:
            self._kept.pop()[1].close()

    def _ask(self, url: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = self._connected(url)
        assert connection.sock is not None
        connection.sock.settimeout(_SECONDS + len(body) / _BYTES_A_SECOND)
        try:
            connection.request(method, path, body, headers)
            with connection.getresponse() as answer:
                ours = answer.getheader(OWNER) is not None
                content = answer.read() if ours else b""
        except (HTTPException, OSError) as error:
            connection.close()
            raise OwnerSilent("the server that writes this directory does not answer") from error
        if not ours:
            connection.close()
            raise OwnerUnreached("another program answers there")
        if connection.sock is not None:
            self._kept.append((url, connection, time.monotonic()))
        if answer.status == 503 and b":not-owner" in content:
            raise OwnerUnreached("another server writes this directory")
        found = {name: value for name in _RETURNED if (value := answer.getheader(name)) is not None}
        return answer.status, found, content

    def _connected(self, url: str) -> HTTPConnection:
        """Return a connection that is still good, else a new one."""
        with suppress(IndexError):
            kept, connection, since = self._kept.pop()
            if kept == url and time.monotonic() - since < _IDLE:
                return connection
            connection.close()
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port or kind.default_port, timeout=_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            raise OwnerUnreached(type(error).__name__) from error
        return connection

"""One connection of the HTTP API: uvicorn's, with limits on the size and the duration of a request.

uvicorn with httptools has no such limits: a head may be endless, and a request may stay open for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from . import limits
from .protocol.http_errors import BadRequest, HeadTooLarge, TooLarge, TooManyConnections, TooSlow
from .protocol.problem import problem

__all__ = ["Connection", "Send", "send_whole"]

Send = Callable[[Any], Awaitable[None]]

_CLOSED_AT_ONCE = 16  # a connection too many closes a sixteenth of them, so that a flood does not sort them each time


class Connection(HttpToolsProtocol):
    """Refuses large and slow requests with 431, 413 or 408, if no other answer has begun. Owned by the event loop."""

    _numbers = count()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.number = next(self._numbers)  # of two that came in the same millisecond of the loop's clock
        self._refusal: Exception | None = None  # what a callback of the parser raised
        self._asked_since: float | None = None  # when the next request was first waited for, or began; None: it is here
        self._begun = False  # whether its first byte is here
        self._in_body = False
        self._arrived = 0  # bytes that came last
        self._received = 0  # bytes of the request; of one that followed another at once without those beside it
        self._unread_since: float | None = None  # since when the client has not read its answer

    def expire(self, now: float) -> None:
        """Close the connection if its client has taken too long. ``now`` is the event loop's time."""
        since = self.waits_since()
        if self._unread_since is not None and now - self._unread_since > limits.ANSWER_SECONDS:
            self.transport.abort()
        elif since is None:
            return
        elif self._begun and now - since > limits.REQUEST_SECONDS:
            self._refuse(TooSlow(f"the request was not complete within {limits.REQUEST_SECONDS:g} s"))
        elif now - since > limits.IDLE_SECONDS:
            self.transport.close()

    def waits_since(self) -> float | None:
        """When the wait for the client's next bytes began; None while an answer is due or nothing is read."""
        cycle: RequestResponseCycle | None = self.cycle
        due = cycle is not None and not cycle.response_complete and not self._in_body
        return None if due or self.flow.read_paused else self._asked_since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request. At the limit, close the connections that have been idle longest."""
        super().connection_made(transport)
        self._asked_since = self.loop.time()
        if len(self.connections) > limits.MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        waiting = [
            (since, other.number, other)
            for other in self.connections
            if isinstance(other, Connection) and other is not self and (since := other.waits_since()) is not None
        ]
        for _, _, other in sorted(waiting)[: limits.MOST_CONNECTIONS // _CLOSED_AT_ONCE + 1]:
            other.transport.abort()
            self.connections.discard(other)
        if len(self.connections) > limits.MOST_CONNECTIONS:
            self._refuse(TooManyConnections("every connection is at work; ask again, or another server"))

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, within the limits."""
        self._arrived = len(data)
        self._received += self._arrived
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]
                continue
            except HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            break
        head_is_large = self._received > limits.HEAD_BYTES and not self._in_body
        if self._begun and (head_is_large or self._has_too_many_headers()):
            self._refuse(_head_too_large())
        elif self._received > limits.REQUEST_BYTES:
            self._refuse(TooLarge(f"a request may have {limits.REQUEST_BYTES >> 20} MiB"))

    def _should_upgrade(self) -> bool:
        """Have the base class wait with a request that offers another protocol: its parser leaves the body out."""
        return self.parser.get_method() != b"CONNECT"

    def _without_offer(self) -> bytes:
        """Return the head of a request without its offer, for a new parser: Java's HttpClient offers HTTP/2."""
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        return b"\r\n".join([*head, b"", b""])

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request."""
        super().on_message_begin()
        self._begun = True
        self._asked_since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the head is too large. The answer of a server that drains closes the connection."""
        most = self._received + self._arrived  # of earlier requests, too, if they came together
        if self._has_too_many_headers() or (most > limits.HEAD_BYTES and self._head_bytes() > limits.HEAD_BYTES):
            self._refusal = _head_too_large()
            raise self._refusal
        self._in_body = True
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and self.config.app.health.stopping:  # type: ignore[union-attr]
            cycle.keep_alive = False

    def _has_too_many_headers(self) -> bool:
        return len(self.headers) > limits.HEADERS  # trailers after a body are among them

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._in_body = self._begun = False
        self._received = 0
        self._asked_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has begun or this one is still coming."""
        super().on_response_complete()
        if self._asked_since is None and self.cycle.response_complete:
            self._asked_since = self.loop.time()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection until a whole request has its answer: a client may end its side and still read.

        A client that is gone looks the same. An answer that has begun may be a stream without end, so it ends.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_started or self._in_body:
            return False
        cycle.keep_alive = False
        return True

    def pause_writing(self) -> None:
        """Note that the client reads its answer too slowly."""
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        super().resume_writing()
        self._unread_since = None

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser or one of its callbacks rejected."""
        self._refuse(self._refusal or BadRequest(msg))

    def _refuse(self, error: Exception) -> None:
        """Answer the incoming request and close. If another answer has begun or is due, only close."""
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            answerable = not self._in_body
        else:
            answerable = self._in_body and not cycle.response_started and not self.pipeline
            cycle.disconnected = True
            cycle.message_event.set()
        if answerable:
            self.transport.write(_answer(error))
        self.transport.close()


async def send_whole(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
    """Send an answer of which everything is known, the length of its body too; uvicorn's in one write.

    uvicorn looks at each name and value by two regular expressions, and writes twice. The headers of an answer come
    from us, so it is enough that none of them breaks the line.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or not _is_plain(cycle):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
    head = b"".join([STATUS_LINE[status], *lines, b"\r\n"])
    if not head.count(b"\n") == head.count(b"\r") == len(lines) + 2:
        raise ValueError("a header holds a line break")
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(head + body)
    cycle.message_event.set()
    cycle.on_response()


def _is_plain(cycle: RequestResponseCycle) -> bool:
    """Say whether an answer is sent at once, with its body, on a connection that stays open."""
    return (
        cycle.keep_alive
        and cycle.scope["method"] != "HEAD"
        and not (cycle.disconnected or cycle.response_started or cycle.flow.write_paused or cycle.access_log)
    )


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"a request's line and headers may have {limits.HEAD_BYTES >> 10} KiB and {limits.HEADERS} lines"
    )


def _answer(error: Exception) -> bytes:
    refusal = problem(error)
    lines = [b"%b: %b\r\n" % header for header in (*refusal.headers, (b"connection", b"close"))]
    return b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", refusal.body])

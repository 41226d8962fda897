"""A connection of a server: uvicorn's, with the limits on its client that uvicorn does not have.

uvicorn takes a head of any size, waits for a request for ever, and parses all requests that a client sends without
reading the answers. The ASGI application applies the limits on everything that it can see.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from itertools import count
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from . import limits
from .limits import HeldBytes
from .problem import BadRequest, HeadTooLarge, TooLarge, TooManyConnections, TooSlow, problem

__all__ = ["Connection"]

_SLICE = 1 << 10  # bytes that are parsed at once: this limits how many requests of a client wait in memory
_CLOSED_PART = 16  # at the limit a sixteenth of the connections is closed: sorting all of them takes long

_NUMBERS = count()


class _Stage(IntEnum):
    """The part of a request that the client sends now."""

    IDLE = 0  # no request has begun
    HEAD = 1
    BODY = 2


_IDLE, _HEAD, _BODY = _Stage


class Connection(HttpToolsProtocol):
    """Refuses large and slow requests with 431, 413 or 408, if no other answer has begun. Owned by the event loop.

    Parses requests that arrive together a few at a time, and the next ones after those have their answers.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stage = _IDLE
        self.waiting_since = self.loop.time()  # for the next request, or for the end of this one
        self._number = next(_NUMBERS)  # many connections have one time: the loop's clock stands still in a round
        self._request_bytes = 0
        self._head_bytes = 0  # since the last piece of the body: the head, chunk extensions, trailers
        self._unparsed = b""  # received while earlier requests wait, or while a body is not read
        self._unread_bytes = HeldBytes(self.config.app.budget)  # type: ignore[union-attr]
        self._unread_since = 0.0  # when the client last read some of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request. At the limit, close the connections that have been idle longest."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        if len(self.connections) > limits.MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        closable = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection is not self and connection.waits_for_client
        ]
        closable.sort(key=lambda connection: (connection.waiting_since, connection._number))  # noqa: SLF001
        for connection in closable[: limits.MOST_CONNECTIONS // _CLOSED_PART + 1]:
            connection.transport.abort()
            self.connections.discard(connection)
        if len(self.connections) > limits.MOST_CONNECTIONS:
            self._refuse(TooManyConnections("every connection is in use; ask again, or another server"))

    @property
    def waits_for_client(self) -> bool:
        """True while the client has to send; False while an answer is due or reading is paused."""
        cycle: RequestResponseCycle | None = self.cycle
        answer_is_due = cycle is not None and not cycle.response_complete and self._stage is not _BODY
        return not (answer_is_due or self.flow.read_paused)

    def expire(self, time: float) -> None:
        """Close the connection if its client has taken too long. Called every second with the event loop's time."""
        if self._unread_bytes.size:
            self._expire_answer(time)
        if not self.waits_for_client:
            return
        waited = time - self.waiting_since
        if self._stage and waited > limits.REQUEST_SECONDS:
            self._refuse(TooSlow(f"the request was not complete within {limits.REQUEST_SECONDS:g} s"))
        elif waited > limits.IDLE_SECONDS:
            self.transport.close()

    def _expire_answer(self, time: float) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes < self._unread_bytes.size:
            self._unread_bytes.set(unread_bytes)
            self._unread_since = time
        elif time - self._unread_since > limits.ANSWER_SECONDS:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, within the limits."""
        if len(data) > _SLICE or self._unparsed:
            self._unparsed += data
            self.parse_on()
        else:
            self._parse(data)

    def parse_on(self) -> None:
        """Parse the received bytes, until a request waits for an earlier answer or the application reads no body."""
        data, start = memoryview(self._unparsed), 0
        while start < len(data) and not (self.flow.read_paused or self.transport.is_closing()):
            self._parse(data[start : start + _SLICE])
            start += _SLICE
        self._unparsed = bytes(data[start:])

    def _parse(self, data: bytes | memoryview) -> None:
        size = len(data)
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except HttpParserUpgrade as offer:  # happens once for each request
                    data = self._head_without_offer() + data[offer.args[0] :]
        except HttpParserError:
            self._refuse(BadRequest("the request is not HTTP/1.1, or asks for a tunnel"))
        else:
            if self._stage:  # the request is not complete
                self._limit(size)

    def _limit(self, size: int) -> None:
        """Count the bytes of an incomplete request. Refuse it if it is too large."""
        self._request_bytes += size
        self._head_bytes += size
        if self._head_bytes > limits.HEAD_BYTES or len(self.headers) > limits.HEADERS:
            size_limit = f"{limits.HEAD_BYTES >> 10} KiB and {limits.HEADERS} lines"
            self._refuse(HeadTooLarge(f"a request's line and headers may have {size_limit}"))
        elif self._request_bytes > limits.REQUEST_BYTES:
            self._refuse(TooLarge(f"a request may have {limits.REQUEST_BYTES >> 20} MiB"))

    def _head_without_offer(self) -> bytes:
        """Return the head of a request without its header Upgrade, and begin a new parser.

        The parser leaves out the body of a request with Upgrade. Java's HttpClient offers HTTP/2 with each request.
        """
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        return b"\r\n".join([*head, b"", b""])

    def _should_upgrade(self) -> bool:
        """Return True: the base class then ignores a request with Upgrade, and `_parse` parses it again."""
        return True

    def on_message_begin(self) -> None:
        """Begin to wait for the remaining bytes of a request."""
        super().on_message_begin()
        self._stage, self.waiting_since = _HEAD, self.loop.time()

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the request asks for a tunnel."""
        if self.parser.get_method() == b"CONNECT":
            raise BadRequest("CONNECT")
        self._stage = _BODY
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on to the application."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._stage = _IDLE
        self._request_bytes = self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request, or wait for it. `expire` ends the wait, so the base class's timer is not set."""
        self.server_state.total_requests += 1
        self.waiting_since = self.loop.time()
        if self.pipeline and not self.transport.is_closing():
            cycle, app = self.pipeline.pop()
            task = self.loop.create_task(cycle.run_asgi(app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        self.flow.resume_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return True to keep the connection until the answer is sent: the client sends no more, but may still read.

        Return False if the request is incomplete or its answer has begun. The answer may be an endless stream, and a
        client that has gone looks the same.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_started or self._stage is _BODY:
            return False
        cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the bytes that the connection has in memory."""
        self._unparsed = b""
        self._unread_bytes.set(0)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client reads its answer too slowly."""
        super().pause_writing()
        self._unread_bytes.set(self.transport.get_write_buffer_size())
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """Note that the client has read its answer."""
        super().resume_writing()
        self._unread_bytes.set(0)

    def _refuse(self, error: Exception) -> None:
        """Answer the incoming request with the error and close. Only close if another answer has begun or is due."""
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            answerable = self._stage is not _BODY
        else:
            answerable = self._stage is _BODY and not cycle.response_started and not self.pipeline
            cycle.disconnected = True
            cycle.message_event.set()
        if answerable:
            self.transport.write(_refusal_bytes(error))
        self.transport.close()


class _Flow(FlowControl):
    """Flow control that resumes reading only after no request waits and all received bytes are parsed."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if not self.read_paused or self._connection.pipeline or self._transport.is_closing():
            return
        self.read_paused = False
        self._connection.parse_on()
        if not self.read_paused:
            self._transport.resume_reading()


def _refusal_bytes(error: Exception) -> bytes:
    refusal = problem(error)
    lines = [b"%b: %b\r\n" % header for header in (*refusal.headers, (b"connection", b"close"))]
    return b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", refusal.body])

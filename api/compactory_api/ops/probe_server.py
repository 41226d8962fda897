"""The connections of a worker's listener: those of `http.server`, with limits on size and duration."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from typing import Any, cast

from compactory.errors import CompactoryError

from ..http import limits
from ..http.errors import BadRequest, TooLarge
from ..http.problem import problem

__all__ = ["ProbeServer", "Respond"]

log = logging.getLogger("compactory.api")

_SILENT_SECONDS = 20.0  # seconds until a connection is closed whose client neither sends nor reads
_BODY_BYTES = 8 << 20
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Respond = Callable[[str, str, Any, Callable[[], bytes]], tuple[int, list[tuple[str, str]], bytes]]
"""Method, path, headers and the function that reads the body → status, headers, body."""


class ProbeServer(ThreadingHTTPServer):
    """Answers each connection in a thread of its own, at most `limits.PROBE_CONNECTIONS` at a time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, bound: socket.socket, respond: Respond) -> None:
        super().__init__(bound.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()  # of the base class
        self.socket = bound
        self.server_address = bound.getsockname()[:2]
        self.respond = respond
        self._open: dict[socket.socket, tuple[float, bool] | None] = {}  # as `note` has it; None: the client waits

    def note(self, connection: socket.socket, since: float | None, *, has_begun: bool = False) -> None:
        """Note since when a connection waits for its client (None: it does not), and if a request has begun."""
        if connection in self._open:
            self._open[connection] = None if since is None else (since, has_begun)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a connection's thread. At the limit, close the connection that has waited longest."""
        self._open[request] = time.monotonic(), False
        if len(self._open) > limits.PROBE_CONNECTIONS:
            self._end(min(self._waiting())[-1])
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End requests that take too long. Called ten times a second."""
        expired = time.monotonic() - limits.REQUEST_SECONDS
        for since, has_begun, _, connection in self._waiting():
            if has_begun and since < expired:
                with contextlib.suppress(OSError):
                    connection.send(_TOO_SLOW, socket.MSG_DONTWAIT)
                self._end(connection)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the base class's)
        """Log that a client has gone, or that the answer failed."""
        log.debug("a health request failed", exc_info=True)

    def _waiting(self) -> list[tuple[float, bool, int, socket.socket]]:
        """Return the connections that wait for their clients; in the order of tuples the oldest is first."""
        connections = list(self._open.items())
        return [(*wait, id(connection), connection) for connection, wait in connections if wait is not None]

    def _end(self, connection: socket.socket) -> None:
        """End a connection: its thread then finds that the client has gone."""
        self._open.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENT_SECONDS
    disable_nagle_algorithm = True  # head and body are two writes

    def __getattr__(self, name: str) -> Any:
        """Return the same function for every HTTP method."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def setup(self) -> None:
        """Read heads within their limit."""
        super().setup()
        self._reader = self.rfile = _Reader(self.rfile)  # type: ignore[assignment, arg-type]
        self._server = cast("ProbeServer", self.server)

    def handle_one_request(self) -> None:
        """Wait for a request, note when it begins, and answer it."""
        self._server.note(self.connection, time.monotonic())
        try:
            self._reader.wait()
        except OSError:  # silent for too long, or gone
            self.close_connection = True
            return
        self._request_began = time.monotonic()
        self._server.note(self.connection, self._request_began, has_begun=True)
        super().handle_one_request()

    def _answer(self) -> None:
        self._server.note(self.connection, None)
        try:
            path = self.path.partition("?")[0]
            status, headers, body = self._server.respond(self.command, path, self.headers, self._body)
        except Exception as error:
            if not isinstance(error, CompactoryError):
                log.exception("a health request failed")
            refusal = problem(error)
            status, body = refusal.status, refusal.body
            headers = [(name.decode(), value.decode()) for name, value in refusal.headers if name != b"content-length"]
        self.close_connection |= "Content-Length" in self.headers or "Transfer-Encoding" in self.headers  # if unread
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        """Return the body. Raises BadRequest and TooLarge."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise BadRequest("send a body with its Content-Length")
        if len(length) > 9 or int(length) > _BODY_BYTES:
            raise TooLarge(f"a body may have {_BODY_BYTES:,} bytes")
        self._server.note(self.connection, self._request_began, has_begun=True)
        body = self._reader.read(int(length))
        self._server.note(self.connection, None)
        return body

    def version_string(self) -> str:
        return "compactory"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's)
        """Log nothing: probes come every few seconds."""


class _Reader:
    """The bytes of a client. The lines of a head share one limit."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._remaining = 0

    def wait(self) -> None:
        """Wait for the first byte of a request, and begin to count."""
        self._file.peek(1)
        self._remaining = limits.HEAD_BYTES + 1

    def readline(self, size: int) -> bytes:
        """Read a line of a head. Raises LineTooLong, which the base class answers with 431."""
        line = self._file.readline(min(size, self._remaining + 1))
        self._remaining -= len(line)
        if self._remaining < 0:
            raise LineTooLong("head")
        return line

    def read(self, size: int) -> bytes:
        """Read a body."""
        return self._file.read(size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

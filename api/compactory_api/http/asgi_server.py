"""uvicorn's server with this project's connections, and the sending of whole answers by one write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from .connection import Connection

__all__ = ["AsgiServer", "Mounted", "Send", "send_whole"]


class AsgiServer(uvicorn.Server):
    """Serves an ASGI application that has a ``budget``. ``graceful``: seconds that requests may take after a stop."""

    def __init__(self, app: Any, *, graceful: float, proxies: Sequence[str] = ()) -> None:
        config = uvicorn.Config(
            app,
            loop="auto",  # uvloop where it is installed: it is not for Windows
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=[*proxies],
            timeout_graceful_shutdown=max(1, round(graceful)),
        )
        super().__init__(config)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # a line for each malformed request helps only scanners

    async def on_tick(self, counter: int) -> bool:
        """Expire connections every second. Called every 0.1 s."""
        if counter % 10 == 0:
            time = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.expire(time)
        return await super().on_tick(counter)


class Mounted:
    """An application for all paths, and another one for those below ``path``. Has the ``budget`` of the first."""

    def __init__(self, app: Any, path: str, below: Any) -> None:
        self.budget = app.budget
        self._app = app
        self._path = path
        self._below = below

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, as an ASGI application."""
        is_below = scope["type"] == "http" and scope["path"].startswith(self._path)
        await (self._below if is_below else self._app)(scope, receive, send)


Send = Callable[[Any], Awaitable[None]]
"""The function of ASGI that sends one message of an answer."""


async def send_whole(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
    """Send an answer whose headers have the length of its body; in one write where uvicorn is the server.

    uvicorn matches each name and value with two regular expressions, and writes twice. This server makes the headers
    itself, so it only checks that none of them has a line break.
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
    """Return True if an answer is sent at once, with its body, on a connection that stays open."""
    return (
        cycle.keep_alive
        and cycle.scope["method"] != "HEAD"
        and not (cycle.disconnected or cycle.response_started or cycle.flow.write_paused or cycle.access_log)
    )

"""The overview: every process, directory and worker, and charts of the last hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from ..call import Call
from ..verdict import verdict_of_directory

__all__ = ["chart_data", "event", "event_stream", "overview_events", "overview_page"]

_FIGURES = ("lag", "age", "changes", "lookups", "attempts")
_HEARTBEAT = 15.0  # seconds
_LEAST_PAUSE = 0.5  # seconds between two contents


async def overview_page(call: Call) -> Response:
    """Return the overview."""
    return call.page("overview.html", **_context(call))


async def overview_events(call: Call) -> Response:
    """Return the overview's content as events, at once and after answers of processes."""

    async def events() -> AsyncIterator[bytes]:
        servers = call.parts.servers
        while True:
            version = servers.version
            yield _content(call, version)
            await asyncio.sleep(_LEAST_PAUSE)  # one content for the answers of many processes
            while not await servers.wait(version, _HEARTBEAT):
                yield b": heartbeat\n\n"

    return event_stream(events())


async def chart_data(call: Call) -> Response:
    """Return the samples of one figure of every process; a value of null is a gap."""
    figure = call.query("figure") or "lag"
    if figure not in _FIGURES:
        figure = "lag"
    number = call.number("server")
    chosen = [server for server in call.parts.servers.processes if number in (None, server.number)]
    series = [
        {
            "label": server.url,
            "times": [sample.at for sample in server.samples],
            "values": [getattr(sample, figure) for sample in server.samples],
        }
        for server in chosen
        if any(getattr(sample, figure) is not None for sample in server.samples)
    ]
    return JSONResponse({"series": series})


def event(name: str, text: str) -> bytes:
    """Return a server-sent event whose data may have several lines."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n".encode("utf-8", "replace")


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """Return an answer of events, which proxies pass on at once."""
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _content(call: Call, version: int) -> bytes:
    """Return the event with the content as of a version of the processes; tabs with the same rights share it."""
    contents, grant = call.parts.overview_contents, call.session.grant
    rights = grant.default, frozenset(grant.scopes.items())
    if rights not in contents or contents[rights][0] != version:
        text = call.parts.pages.fragment("_overview.html", call.session, **_context(call))
        contents[rights] = version, event("content", text)
    return contents[rights][1]


def _context(call: Call) -> dict[str, Any]:
    return {
        "servers": call.parts.servers.processes,
        "outside_servers": call.parts.operators.servers,
        "directories": [
            (server, directory, verdict_of_directory(directory))
            for server in call.parts.servers.processes
            for directory in server.directories
            if call.session.can_read(directory["name"])
        ],
    }

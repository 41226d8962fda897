"""The pages of a directory: its entries, the live feed, bad records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from compactory.errors import ConfigError

from ..call import Call
from ..verdict import verdict_of_directory
from .overview import event, event_stream

__all__ = [
    "directory_page",
    "errors_page",
    "live_events",
    "live_page",
    "resolve_errors",
]

_PAGE = 50  # entries
_MOST_COLUMNS = 40
_SHOWN_COLUMNS = 6  # where the visitor has chosen none
_LIVE = 50  # changes that the live page begins with


async def directory_page(call: Call) -> Response:
    """Return the entries that match, in the order of their keys."""
    server, name, path = call.directory()
    status = server.directory(name)
    selection = {item: call.query(item) for item in ("prefix", "index", "value", "cursor")}
    query = urlencode([("limit", _PAGE), *((key, text) for key, text in selection.items() if text is not None)])
    document = await call.parts.servers.ask(server, f"{path}/entries?{query}")
    entries = document["entries"]
    columns = _columns(entries)
    chosen = [column for column in call.request.query_params.getlist("column") if column in columns]
    return call.page(
        "directory.html",
        server=server,
        name=name,
        directory=status,
        verdict=None if status is None else verdict_of_directory(status),
        partitions=[] if status is None else server.partitions(status["topic"]),
        entries=entries,
        columns=columns,
        chosen=chosen or columns[:_SHOWN_COLUMNS],
        has_chosen=bool(chosen),
        next_cursor=document["next_cursor"],
        selection=selection,
    )


async def live_page(call: Call) -> Response:
    """Return the newest changes of a directory; further ones come as events."""
    server, name, _ = call.directory()
    feed = call.parts.changes.feed(server, name)
    return call.page(
        "live.html",
        server=server,
        name=name,
        changes=[] if feed is None else feed.newest(_LIVE),
        count=0 if feed is None else feed.count,
        error=None if feed is None else feed.error,
    )


async def live_events(call: Call) -> Response:
    """Return each change of a directory after those of the page as an event, which has a row of the page."""
    server, name, _ = call.directory()
    feed = call.parts.changes.feed(server, name)
    if feed is None:
        raise ConfigError(f"{server.url} does not serve directory {name!r} now")
    seen = call.request.headers.get("last-event-id") or call.query("after") or ""
    after = int(seen) if seen.isdecimal() else feed.count

    async def events() -> AsyncIterator[bytes]:
        async with feed.followed(after) as queue:
            yield b": open\n\n"
            while True:
                try:
                    number, change = await asyncio.wait_for(queue.get(), 15.0)
                except TimeoutError:
                    yield b": heartbeat\n\n"
                    continue
                row = call.parts.pages.fragment("_change.html", call.session, change=change, server=server, name=name)
                yield f"id: {number}\n".encode() + event("row", row)

    return event_stream(events())


async def errors_page(call: Call) -> Response:
    """Return the bad records of a process."""
    server = call.server()
    document = await call.parts.servers.ask(server, "/v1/errors?limit=200")
    records = [record for record in document["errors"] if call.session.can_read(record["directory"])]
    if not call.session.is_admin:  # the text of an error may quote the value
        records = [record | {"error": record["error"].partition(":")[0], "stacktrace": None} for record in records]
    return call.page("errors.html", server=server, records=records, outstanding=document["outstanding"])


async def resolve_errors(call: Call) -> Response:
    """Apply bad records again, or drop them."""
    server, act = call.server(), call.field("act")
    places = [orjson.loads(text) for text in call.form.get("record", [])]
    for place in places:
        call.session.demand_admin(place["directory"])
    if act not in ("retry", "skip") or not places:
        raise ConfigError("choose records first, and retry or skip")
    result = await call.parts.servers.ask(server, f"/v1/errors:{act}", method="POST", document={"errors": places})
    words = "were applied" if act == "retry" else "were dropped"
    message = f"{result['done']} of {len(places)} records {words}; {result['outstanding']} are still bad."
    return call.back(f"/servers/{server.number}/errors", message)


def _columns(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the fields of the values, in the order in which they come."""
    names: dict[str, None] = {}
    for entry in entries:
        if isinstance(entry["value"], dict):
            names.update(dict.fromkeys(entry["value"]))
    return list(names)[:_MOST_COLUMNS]

"""The route to the changes of a directory as server-sent events, for thousands of clients at a time.

Clients that have seen everything share the next events: these are encoded once. A client that is slow, or that comes
with a cursor, has a watch of its own until it has caught up. So the change log of the store is the only buffer. A
client that reads more slowly than the log drops changes gets the error that says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from compactory.errors import CompactoryError, NotReady, WaitTimeout
from compactory.read.view import View
from compactory.store import GlobalStore
from compactory.watch.change import Change, Cursor
from compactory.watch.watch import Watch

from ..http import limits
from ..http.limits import ThreadGroup
from ..http.models import DirectoryChange
from ..http.openapi import problems, reference_to
from ..http.problem import Stopping, TooManyConnections, problem
from ..http.response import embedder

__all__ = ["ChangeStreams", "change_routes"]

log = logging.getLogger("compactory.api")

_EVENTS = "text/event-stream"
_HEARTBEAT = 15.0  # seconds; proxies close connections that are silent for 60
_MOST_BYTES = 16 << 10  # of values in one write: a slow client keeps that much in memory, and its socket's 64 K
_SLICE = 64  # streams that are woken before lookups get a turn
_PAUSE = 10e-6  # seconds for each stream between two rounds of events: leaves a third of the time to lookups
_ANSWER = {
    "description": "An event named put or delete for each change; its id is the cursor after it. The event named"
    " heartbeat comes at first and every 15 s: it has no data. The event named end says with a problem document why no"
    " more come",
    "content": {_EVENTS: {"schema": reference_to(DirectoryChange)}},
}


class WatchQuery(BaseModel):
    """The changes to send."""

    model_config = ConfigDict(extra="forbid")  # a misspelled `since` would lose changes

    since: str | None = Field(None, description="A cursor: the id of the last event seen")
    prefix: str = Field("", description="Only keys that begin with this")


def change_routes(store: GlobalStore, streams: ChangeStreams) -> APIRouter:
    """Return the route. It raises the errors of `problem`'s table."""
    routes = APIRouter(tags=["entries"])

    @routes.get(
        "/v1/directories/{directory}/watch",
        operation_id="watch_changes",
        summary="The changes of a directory as they come, as server-sent events",
        response_class=Response,
        responses={200: _ANSWER, **problems(400, 401, 403, 404, 405, 410, 421, 503)},
    )
    async def watch(
        directory: str,
        query: Annotated[WatchQuery, Query()],
        last_event_id: Annotated[
            str | None, Header(description="The same as `since`, and goes before it; browsers send it to go on")
        ] = None,
    ) -> Response:
        text = last_event_id or query.since
        cursor = None if text is None else Cursor.parse(text.replace(" ", "+"))  # an unescaped + arrives as a space
        return await streams.open(store[directory], cursor, query.prefix)

    return routes


class ChangeStreams:
    """The open streams of a server. Owned by one event loop; any thread may call `counts`."""

    def __init__(self, threads: ThreadGroup) -> None:
        self._threads = threads  # for calls that wait for the store's reader thread
        self._feeds: dict[str, _Feed] = {}
        self._opening = 0
        self._is_closed = False

    def counts(self) -> dict[str, int]:
        """Return the number of open streams by directory."""
        return {name: len(feed.streams) for name, feed in list(self._feeds.items())}

    async def open(self, view: View[Any], since: Cursor | None, prefix: str) -> Stream:
        """Return a stream. Raises NotReady, WatchExpired, TooManyConnections, Stopping, StoreFailed, StoreClosed."""
        if self._opening + sum(self.counts().values()) >= limits.MOST_WATCHERS:
            raise TooManyConnections(f"{limits.MOST_WATCHERS} clients watch already; ask another server")
        self._opening += 1
        try:
            watch, shared_watch = await self._threads.run(lambda: (view.watch(since), view.watch()))
        except WaitTimeout as error:  # the reader thread is busy: no answer to a precondition of the request
            raise NotReady(str(error)) from None
        finally:
            self._opening -= 1
        if self._is_closed:
            raise _ask_another_server()
        feed = self._feeds.setdefault(view.directory.name, _Feed(view))
        return feed.add(Stream(feed, watch, prefix), shared_watch)

    def close(self) -> None:
        """End every stream, with an event that sends the client to another server."""
        self._is_closed = True
        for feed in self._feeds.values():
            feed.end(_ask_another_server())


class _Feed:
    """The shared changes of one directory, and the streams that they go to."""

    def __init__(self, view: View[Any]) -> None:
        self.streams: dict[Stream, None] = {}  # in the order of their opening
        self.shared_watch: Watch[Any] | None = None  # at the position that all streams without an own watch have
        self._directory = view.directory.name
        self._event = partial(_event, embedder(view.directory))
        self._task: asyncio.Task[None] | None = None

    def add(self, stream: Stream, watch: Watch[Any]) -> Stream:
        """Add a stream. The first one starts the feed, at the position of ``watch``."""
        self.streams[stream] = None
        if self.shared_watch is None:
            self.shared_watch = watch
            self._task = asyncio.ensure_future(self._run(watch))
        return stream

    def end(self, error: Exception) -> None:
        """End every stream with an error."""
        for stream in self.streams:
            stream.end(error)

    def events(self, changes: Iterable[Change[Any]], prefix: str) -> bytes:
        """Return the events of the changes whose key begins with the prefix."""
        return b"".join(self._event(change) for change in changes if change.key.startswith(prefix))

    async def _run(self, watch: Watch[Any]) -> None:
        """Send changes and heartbeats until no stream is left or an error ends the changes."""
        loop, has_changes = asyncio.get_running_loop(), asyncio.Event()
        unsubscribe = watch.subscribe(partial(_set_in_loop, loop, has_changes))
        next_heartbeat = loop.time() + _HEARTBEAT
        try:
            while self.streams:
                while True:
                    has_changes.clear()
                    watch_before, changes = watch.fork(), watch.take(_MOST_BYTES)
                    if not changes:
                        break
                    await self._send_changes(watch_before, changes)
                if loop.time() >= next_heartbeat:
                    next_heartbeat = loop.time() + _HEARTBEAT
                    await self._for_each_stream(Stream.send_heartbeat)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(next_heartbeat):
                        await has_changes.wait()
        except Exception as error:
            if not isinstance(error, CompactoryError):
                log.exception("no more changes of directory %s can be sent", self._directory)
            self.end(error)
        finally:
            unsubscribe()
            self.shared_watch = None

    async def _send_changes(self, watch_before: Watch[Any], changes: Sequence[Change[Any]]) -> None:
        """Offer the changes to every stream. ``watch_before`` is at the position before them."""
        events_by_prefix: dict[str, bytes] = {}

        def offer(stream: Stream) -> None:
            if stream.prefix not in events_by_prefix:
                events_by_prefix[stream.prefix] = self.events(changes, stream.prefix)
            stream.offer(events_by_prefix[stream.prefix], watch_before)

        await self._for_each_stream(offer)
        await asyncio.sleep(_PAUSE * len(self.streams))

    async def _for_each_stream(self, action: Callable[[Stream], None]) -> None:
        for number, stream in enumerate(list(self.streams), 1):
            action(stream)
            if number % _SLICE == 0:
                await asyncio.sleep(0)


class Stream(Response):
    """Sends events to one client until the stream ends or the client goes away. Owned by the event loop."""

    def __init__(self, feed: _Feed, watch: Watch[Any], prefix: str) -> None:
        super().__init__(media_type=_EVENTS, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.prefix = prefix
        self.error: Exception | None = None  # why no more events come
        self._feed = feed
        self._own_watch: Watch[Any] | None = watch  # None: the client has seen all that the feed has sent
        self._next_events: asyncio.Future[bytes] | None = None  # what `next` waits for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the answer, as an ASGI application."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send_events(send))  # each event then resumes few coroutines
        try:
            while (await receive())["type"] != "http.disconnect":  # which also comes once everything was sent
                continue
        finally:
            self.close()
        await sending

    async def _send_events(self, send: Send) -> None:
        end_event = b""
        try:
            await send(_body_message(self.heartbeat()))
            while self.error is None:
                if events := await self.next():
                    await send(_body_message(events))
            end_event = b"event: end\ndata: %b\n\n" % problem(self.error).body
        finally:
            await send(_body_message(end_event, is_last=True))

    def offer(self, events: bytes, watch_before: Watch[Any]) -> None:
        """Send the feed's next events if the client has all events before them.

        A stream that still sends gets a watch of its own, from the position of ``watch_before`` on.
        """
        if self._own_watch is not None:
            self._wake(b"")
        elif self._next_events is None or self._next_events.done():
            self._own_watch = watch_before.fork()
        elif events:
            self._wake(events)

    def send_heartbeat(self) -> None:
        """Send a heartbeat, unless the client still reads events."""
        self._wake(self.heartbeat())

    def end(self, error: Exception) -> None:
        """End the stream with an error, after the events that are being sent."""
        self.error = self.error or error
        self._wake(b"")

    def close(self) -> None:
        """Leave the feed: the client has gone, or has everything."""
        self._feed.streams.pop(self, None)
        self.end(_ask_another_server())

    async def next(self) -> bytes:
        """Return the next events; none if no change has the prefix of this client, or after an error."""
        shared_watch = self._feed.shared_watch
        if self._own_watch is not None and shared_watch is not None:
            try:
                changes = self._own_watch.take(_MOST_BYTES, until=shared_watch)
            except CompactoryError as error:
                self.error = error
                return b""
            if changes:
                await asyncio.sleep(0)  # clients that catch up take turns
                return self._feed.events(changes, self.prefix)
            if self._own_watch.is_level_with(shared_watch):
                self._own_watch = None
        self._next_events = asyncio.get_running_loop().create_future()
        try:
            return await self._next_events
        finally:
            self._next_events = None

    def heartbeat(self) -> bytes:
        """Return an event that has only the cursor of the stream's position; nothing after the feed has ended."""
        watch = self._own_watch or self._feed.shared_watch
        return b"" if watch is None else b"event: heartbeat\nid: %b\n\n" % str(watch.cursor).encode()

    def _wake(self, events: bytes) -> None:
        if self._next_events is not None and not self._next_events.done():
            self._next_events.set_result(events)


def _body_message(events: bytes, *, is_last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": events, "more_body": not is_last}


def _set_in_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(event.set)


def _event(embed: Callable[[bytes], Any], change: Change[Any]) -> bytes:
    document = {
        "kind": change.kind,
        "key": change.key,
        "old": None if change.raw_old is None else embed(change.raw_old),
        "new": None if change.raw is None else embed(change.raw),
        "partition": change.partition,
        "offset": change.offset,
        "timestamp_ms": change.timestamp_ms,
    }
    data = orjson.dumps(document).replace(b"\n", b" ").replace(b"\r", b" ")  # JSON of a topic may have line breaks
    return b"event: %b\nid: %b\ndata: %b\n\n" % (change.kind.encode(), str(change.cursor).encode(), data)


def _ask_another_server() -> Stopping:
    return Stopping("the server shuts down; ask another one, with the id of the last event")

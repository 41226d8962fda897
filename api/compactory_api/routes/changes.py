"""The route to the changes of a directory: server-sent events, for thousands of clients at a time.

Clients that have seen everything share the next events: these are taken and written once. A client that is slow, or
that comes with a cursor, has a watch of its own until it has caught up. So the changes that the store keeps are the
only buffer; a client that falls behind them is told so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from compactory.errors import CompactoryError, NotReady, WaitTimeout
from compactory.read.view import View
from compactory.store import GlobalStore
from compactory.watch.change import Change, Cursor
from compactory.watch.watch import Watch

from ..http import limits
from ..http.document import DirectoryChange
from ..http.errors import BadRequest, Stopping, TooManyConnections
from ..http.openapi import problems, reference_to
from ..http.problem import problem
from ..http.threads import ThreadGroup
from ..http.values import embedder

__all__ = ["ChangeStreams", "change_routes"]

log = logging.getLogger("compactory.api")

_EVENTS = "text/event-stream"
_PARAMETERS = frozenset({"prefix", "since"})
_HEARTBEAT = 15.0  # seconds; proxies close connections that are silent for 60
_MOST_BYTES = 16 << 10  # of values that are written at once: a slow client holds on to that much, and its socket's 64 K
_SLICE = 64  # clients that are woken at a time, so that lookups go on in between
_PAUSE = 10e-6  # seconds for each client between two rounds of events: so lookups have a third of the time at least
_ANSWER = {
    "description": "An event named put or delete for each change; its id is the cursor after it. The event named"
    " heartbeat comes at first and every 15 s: it has no data. The event named end says with a problem document why no"
    " more come",
    "content": {_EVENTS: {"schema": reference_to(DirectoryChange)}},
}


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
        request: Request,
        since: Annotated[str | None, Query(description="A cursor: the id of the last event seen")] = None,
        prefix: Annotated[str, Query(description="Only keys that begin with this")] = "",
        last_event_id: Annotated[
            str | None, Header(description="The same as `since`, and goes before it; browsers send it to go on")
        ] = None,
    ) -> Response:
        if unknown := sorted(request.query_params.keys() - _PARAMETERS):  # ignored, changes before now would be lost
            raise BadRequest(f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(_PARAMETERS))}")
        text = last_event_id or since
        cursor = None if text is None else Cursor.parse(text.replace(" ", "+"))  # as it was, if it was not escaped
        return _Sent(await streams.open(store[directory], cursor, prefix))

    return routes


class ChangeStreams:
    """The open streams of a server. Belongs to one event loop; `counts` is for any thread."""

    def __init__(self, threads: ThreadGroup) -> None:
        self._threads = threads  # for what waits for the store's reader
        self._feeds: dict[str, _Feed] = {}
        self._opening = 0
        self._closed = False

    def counts(self) -> dict[str, int]:
        """Return how many clients watch, by directory."""
        return {name: len(feed.streams) for name, feed in list(self._feeds.items())}

    async def open(self, view: View[Any], since: Cursor | None, prefix: str) -> _Stream:
        """Return a stream. Raises NotReady, WatchExpired, TooManyConnections, Stopping, StoreFailed, StoreClosed."""
        if self._opening + sum(self.counts().values()) >= limits.MOST_WATCHERS:
            raise TooManyConnections(f"{limits.MOST_WATCHERS} clients watch already; ask another server")
        self._opening += 1
        try:
            own, shared = await self._threads.run(_watches, view, since)
        except WaitTimeout as error:  # the reader is at something else: nothing that a precondition is about
            raise NotReady(str(error)) from None
        finally:
            self._opening -= 1
        if self._closed:
            raise _stopping()
        feed = self._feeds.setdefault(view.directory.name, _Feed(view))
        return feed.add(_Stream(feed, own, prefix), shared)

    def close(self) -> None:
        """End every stream; clients are told to ask another server."""
        self._closed = True
        for feed in self._feeds.values():
            feed.end(_stopping())


class _Feed:
    """The changes of one directory on their way to its streams."""

    def __init__(self, view: View[Any]) -> None:
        self.streams: dict[_Stream, None] = {}
        self.shared: Watch[Any] | None = None  # what the streams that have seen everything have seen
        self._name = view.directory.name
        self._event = partial(_event, embedder(view.directory))
        self._task: asyncio.Task[None] | None = None

    def add(self, stream: _Stream, shared: Watch[Any]) -> _Stream:
        """Feed one more stream; ``shared`` is where to begin if it is the first."""
        self.streams[stream] = None
        if self.shared is None:
            self.shared = shared
            self._task = asyncio.ensure_future(self._run(shared))
        return stream

    def end(self, error: Exception) -> None:
        """End every stream; an error says why."""
        for stream in self.streams:
            stream.end(error)

    def events(self, changes: Iterable[Change[Any]], prefix: str) -> bytes:
        """Return the events of the changes whose key begins with the prefix."""
        return b"".join(map(self._event, (change for change in changes if change.key.startswith(prefix))))

    async def _run(self, shared: Watch[Any]) -> None:
        """Hand changes and heartbeats out, until there is nobody left or the changes end."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        unsubscribe = shared.subscribe(partial(_tell, loop, changed))
        beat_at = loop.time() + _HEARTBEAT
        try:
            while self.streams:
                while True:
                    changed.clear()
                    before, taken = shared.fork(), shared.take(_MOST_BYTES)
                    if not taken:
                        break
                    await self._hand_out(before, taken)
                if loop.time() >= beat_at:
                    beat_at = loop.time() + _HEARTBEAT
                    await self._beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(beat_at):
                        await changed.wait()
        except Exception as error:
            if not isinstance(error, CompactoryError):
                log.exception("no more changes of directory %s can be sent", self._name)
            self.end(error)
        finally:
            unsubscribe()
            self.shared = None

    async def _hand_out(self, before: Watch[Any], taken: Sequence[Change[Any]]) -> None:
        """Give every stream that is up to date the next events; the others get to know that there are more."""
        written: dict[str, bytes] = {}
        for number, stream in enumerate(list(self.streams), 1):
            if stream.prefix not in written:
                written[stream.prefix] = self.events(taken, stream.prefix)
            stream.offer(written[stream.prefix], before)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(_PAUSE * len(self.streams))

    async def _beat(self) -> None:
        for number, stream in enumerate(list(self.streams), 1):
            stream.beat()
            if number % _SLICE == 0:
                await asyncio.sleep(0)


class _Stream:
    """The events of one client. ``own`` is its watch while it has not seen all that is shared."""

    def __init__(self, feed: _Feed, own: Watch[Any], prefix: str) -> None:
        self.prefix = prefix
        self._own: Watch[Any] | None = own
        self._feed = feed
        self._waiting: asyncio.Future[bytes] | None = None
        self.ended: Exception | None = None  # why no more events come

    def offer(self, events: bytes, before: Watch[Any]) -> None:
        """Give the next events, or wake a stream that catches up. One that still sends has to, from ``before`` on."""
        if self._own is not None:
            self._wake(b"")
        elif self._waiting is None or self._waiting.done():
            self._own = before.fork()
        elif events:
            self._wake(events)

    def beat(self) -> None:
        """Give the cursor of now, if the stream waits."""
        self._wake(self.mark())

    def end(self, error: Exception) -> None:
        """End with an error, as soon as the client has what was given."""
        self.ended = self.ended or error
        self._wake(b"")

    def close(self) -> None:
        """Be fed no more: the client is gone, or has everything."""
        self._feed.streams.pop(self, None)
        self.end(_stopping())

    async def next(self) -> bytes:
        """Return the next events; nothing where there are none for this client, or no more."""
        shared = self._feed.shared
        if self._own is not None and shared is not None:
            try:
                taken = self._own.take(_MOST_BYTES, until=shared)
            except CompactoryError as error:
                self.ended = error
                return b""
            if taken:
                await asyncio.sleep(0)  # a client that catches up takes turns with the others
                return self._feed.events(taken, self.prefix)
            if self._own.is_level_with(shared):
                self._own = None
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def _wake(self, events: bytes) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(events)

    def mark(self) -> bytes:
        """Return a heartbeat: an event that is nothing but the cursor of now."""
        watch = self._own or self._feed.shared
        return b"" if watch is None else b"event: heartbeat\nid: %b\n\n" % str(watch.cursor).encode()


class _Sent(Response):
    """A stream as it is sent, until it ends or the client goes away."""

    def __init__(self, stream: _Stream) -> None:
        super().__init__(media_type=_EVENTS, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send_events(send))  # its stack is short: it is woken by every change
        try:
            while (await receive())["type"] != "http.disconnect":  # which also comes once everything was sent
                continue
        finally:
            self._stream.close()
        await sending

    async def _send_events(self, send: Send) -> None:
        stream, end = self._stream, b""
        try:
            await send(_body(stream.mark()))
            while stream.ended is None:
                if events := await stream.next():
                    await send(_body(events))
            end = b"event: end\ndata: %b\n\n" % problem(stream.ended).body
        finally:
            await send(_body(end, more=False))


def _body(events: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": events, "more_body": more}


def _watches(view: View[Any], since: Cursor | None) -> tuple[Watch[Any], Watch[Any]]:
    return view.watch(since), view.watch()


def _tell(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(changed.set)


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
    data = orjson.dumps(document).replace(b"\n", b" ").replace(b"\r", b" ")  # between the tokens of a topic's JSON
    return b"event: %b\nid: %b\ndata: %b\n\n" % (change.kind.encode(), str(change.cursor).encode(), data)


def _stopping() -> Stopping:
    return Stopping("the server shuts down; ask another one, with the id of the last event")

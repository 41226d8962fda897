"""Routes to digests of a directory's entries, for comparisons with its topic: see `compactory.read`.

Work is done in threads, in slices with pauses between them that are as long, so that lookups go on beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator
from math import inf
from typing import Annotated, Any

import anyio
import orjson
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from compactory.directory import Directory
from compactory.errors import NotReady, WaitTimeout
from compactory.read.digest import RANGES, VERSION, DirectoryDigest, RangeDigest, range_of
from compactory.read.snapshot import DirectorySnapshot, SnapshotRecord
from compactory.store import GlobalStore

from ..http.document import Digest
from ..http.errors import BadRequest
from ..http.openapi import problems
from ..http.values import shower, text_or_base64

__all__ = ["digest_routes"]

Show = Callable[[bytes], bytes]  # a value, as answers show it

_LINES = "application/x-ndjson"
_CHUNK = 64 << 10  # bytes of lines that are sent at once
_MOST_LISTINGS = 4  # at a time: each holds on to what changes meanwhile
_UNREAD = 1.0  # seconds after which a listing whose client does not read gives its place to another one
_LONGEST = 300.0  # seconds that a listing may take, its client included
_RANGES = r"^\d{1,3}(-\d{1,3})?(,\d{1,3}(-\d{1,3})?){0,255}$"
_ANSWERS = problems(400, 401, 403, 404, 421, 503)


def digest_routes(store: GlobalStore, stopping: Callable[[], bool]) -> APIRouter:
    """Return the routes. They end a digest under way once the server is ``stopping``.

    They raise the errors of `problem`'s table.
    """
    routes = APIRouter(prefix="/v1/directories/{directory}/digest", tags=["operations"])
    digests = _Digests(store, stopping)
    listings = _Listings(store)

    @routes.get(
        "",
        operation_id="get_digest",
        summary="Digests of all that a directory holds, by key range, at exactly known positions",
        responses={200: {"model": Digest}, **_ANSWERS},
    )
    async def digest(directory: str) -> Response:
        document = await digests.of(directory)
        return Response(orjson.dumps(document), media_type="application/json", headers={"cache-control": "no-store"})

    @routes.get(
        "/{ranges}",
        operation_id="list_digests",
        summary="The records of some key ranges with their digests, a line of JSON each",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {_LINES: {"schema": {"type": "string"}}},
                "description": "First line: that of get_digest without digests. Then a record a line, in no order:"
                " key, digest, partition, offset, timestamp_ms, bad. Last line: how many; without it the answer was"
                " cut off. A bad key, whose newest record is bad, shows its last good record, or none",
            },
            **_ANSWERS,
        },
    )
    async def records(
        directory: str,
        ranges: Annotated[str, Path(description="7 or 0,7 or 16-31: of 0 to 255", pattern=_RANGES)],
        values: Annotated[bool, Query(description="Show the values too")] = False,
    ) -> Response:
        return await listings.open(directory, _chosen(ranges), values=values)

    return routes


class _Digests:
    """Digests as they are asked for: one is computed at a time, and kept while nothing changes.

    Of one event loop; whoever asks while one of the directory is computed gets that one's answer.
    """

    def __init__(self, store: GlobalStore, stopping: Callable[[], bool]) -> None:
        self._store = store
        self._stopping = stopping
        self._turn = asyncio.Semaphore(1)
        self._under_way: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._digests: dict[str, tuple[tuple[int, frozenset[bytes]], DirectoryDigest]] = {}

    async def of(self, name: str) -> dict[str, Any]:
        """Return the answer's document."""
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.ensure_future(self._computed(name))
            task.add_done_callback(lambda done: (self._under_way.pop(name), done.cancelled() or done.exception()))
        return await asyncio.shield(task)

    async def _computed(self, name: str) -> dict[str, Any]:
        async with self._turn:
            return await asyncio.to_thread(self._compute, name)

    def _compute(self, name: str) -> dict[str, Any]:
        began = time.monotonic()
        with _snapshot(self._store, name) as snapshot:
            state = snapshot.revision, snapshot.bad
            kept_state, digest = self._digests.get(name, (None, None))
            if digest is None or kept_state != state:
                digest = snapshot.digest(self._pause())
        self._digests[name] = state, digest
        return {
            **_described(snapshot),
            "seconds": round(time.monotonic() - began, 3),
            **_shown(digest.total),
            "ranges": [_shown(part) for part in digest.ranges],
        }

    def _pause(self) -> Callable[[], None]:
        """Called between slices. Raises when the server stops: the event loop would otherwise wait for this thread."""
        pause = _Pause()

        def paused() -> None:
            pause()
            if self._stopping():
                raise NotReady("the server stops; ask again later, or another one")

        return paused


class _Listings:
    """Records as they are asked for, a few answers at a time. Owned by the event loop."""

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._open: set[_Listing] = set()

    async def open(self, name: str, ranges: Collection[int], *, values: bool) -> _Listing:
        """Return an answer. Where too many are under way, end one whose client does not read; else raise NotReady."""
        if len(self._open) >= _MOST_LISTINGS:
            self._end_unread()
        listing = _Listing(self._chunks(name, ranges, values=values), self._open.discard)
        self._open.add(listing)
        await listing.start()
        return listing

    def _end_unread(self) -> None:
        oldest = min(self._open, key=lambda listing: listing.unread_since)
        if time.monotonic() - oldest.unread_since < _UNREAD:
            raise NotReady(f"{_MOST_LISTINGS} listings are being sent already; ask again when one is done")
        self._open.discard(oldest)
        oldest.end()

    def _chunks(self, name: str, ranges: Collection[int], *, values: bool) -> Generator[bytes]:
        with _snapshot(self._store, name) as snapshot:
            show = (shower(self._store[name].directory) or bytes) if values else None
            yield from _chunks(_documents(snapshot, ranges, show))


class _Listing(StreamingResponse):
    """An answer that makes its lines while it is sent, and releases them at its end. Owned by the event loop."""

    def __init__(self, chunks: Generator[bytes], ended: Callable[[_Listing], None]) -> None:
        super().__init__(self._content(), media_type=_LINES, headers={"cache-control": "no-store"})
        self.unread_since = inf  # by the monotonic clock: when a chunk began to wait for the client
        self._chunks = chunks
        self._chunk: bytes | None = None  # the next one
        self._ended = ended
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + _LONGEST)

    async def start(self) -> None:
        """Make the first lines: what that raises is an answer of its own."""
        try:
            self._chunk = await run_in_threadpool(next, self._chunks)
        except BaseException:
            self._ended(self)
            raise

    def end(self) -> None:
        """Send no more: the connection closes."""
        self._scope.cancel()

    async def _content(self) -> AsyncIterator[bytes]:
        while self._chunk is not None:
            self.unread_since = time.monotonic()
            yield self._chunk
            self.unread_since = inf
            self._chunk = await run_in_threadpool(next, self._chunks, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it within a time limit: a client that does not read would keep it for ever."""
        try:
            with self._scope:
                await super().__call__(scope, receive, send)
        finally:
            self._chunks.close()
            self._ended(self)


class _Pause:
    """Pauses for as long as the work since the last pause; ends work that takes too long."""

    def __init__(self, longest: float | None = None) -> None:
        self._since = time.perf_counter()
        self._deadline = None if longest is None else time.monotonic() + longest

    def __call__(self) -> None:
        time.sleep(min(time.perf_counter() - self._since, 0.05))
        self._since = time.perf_counter()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise NotReady(f"the listing was not taken within {_LONGEST:g} s")


def _snapshot(store: GlobalStore, name: str) -> DirectorySnapshot:
    try:
        return store.snapshot(name)
    except WaitTimeout as error:  # the reader is at something else: nothing that a precondition is about
        raise NotReady(str(error)) from None


def _documents(snapshot: DirectorySnapshot, ranges: Collection[int], show: Show | None) -> Iterator[dict[str, Any]]:
    yield _described(snapshot)
    number = 0
    for line in _records(snapshot, ranges, show):
        yield line
        number += 1
    yield {"records": number}


def _records(snapshot: DirectorySnapshot, ranges: Collection[int], show: Show | None) -> Iterator[dict[str, Any]]:
    bad_keys = {key for key in snapshot.bad if range_of(key) in ranges}
    for record in snapshot.records(ranges, _Pause(_LONGEST)):
        bad = record.key in bad_keys
        bad_keys.discard(record.key)
        yield _record(record, show, bad=bad)
    for key in bad_keys:
        yield {**text_or_base64("key", key), "bad": True}


def _record(record: SnapshotRecord, show: Show | None, *, bad: bool) -> dict[str, Any]:
    return {
        **text_or_base64("key", record.key),
        "digest": record.digest.hex(),
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "bad": bad,
        **(text_or_base64("value", show(record.value)) if show is not None else {}),
    }


def _chunks(lines: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    chunk = bytearray()
    for line in lines:
        chunk += orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


def _described(snapshot: DirectorySnapshot) -> dict[str, Any]:
    directory = snapshot.directory
    return {
        "directory": directory.name,
        "topic": directory.topic,
        "topic_id": snapshot.topic_id,
        "version": VERSION,
        "definition": _definition(directory),
        "positions": {str(number): position for number, position in sorted(snapshot.positions.items())},
        "bad": len(snapshot.bad),
    }


def _definition(directory: Directory[Any]) -> dict[str, Any]:
    decode = {dict: "object", bytes: "bytes", str: "text"}.get(directory.decode, "callable")  # type: ignore[call-overload]
    return {
        "key": directory.key,
        "active": directory.active,
        "envelope": directory.envelope_name,
        "decode": decode,
        "indexes": [list(index.fields) for index in directory.indexes],
    }


def _shown(digest: RangeDigest) -> dict[str, Any]:
    return {"count": digest.count, "digest": str(digest)}


def _chosen(text: str) -> frozenset[int]:
    """Return the numbers of ranges in ``0,7`` or ``16-31``."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= RANGES:
            raise BadRequest(f"ranges: {part!r} is none; they go from 0 to {RANGES - 1}")
        chosen.update(numbers)
    return frozenset(chosen)

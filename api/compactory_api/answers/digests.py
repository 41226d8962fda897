"""Digests of a directory, and listings of its records with their digests.

The work runs in threads. After each slice of work it pauses for as long as the slice took, so that lookups go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator
from math import inf
from typing import Any

import anyio
import orjson
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from compactory.errors import NotReady, WaitTimeout
from compactory.read.digest import VERSION, DirectoryDigest, RangeDigest, range_of
from compactory.read.snapshot import DirectorySnapshot
from compactory.store import GlobalStore

from .values import shower, text_or_base64

__all__ = ["LINES", "Digests", "Listings"]

LINES = "application/x-ndjson"
_CHUNK_BYTES = 64 << 10  # of lines that are sent at once
_MOST_LISTINGS = 4  # at a time: each keeps the former values of what changes meanwhile
_UNREAD_SECONDS = 1.0  # after which a listing whose client does not read gives its place to another one
_LISTING_SECONDS = 300.0  # that a listing may take, until its client has read it


class Digests:
    """Computes digests, one at a time, and keeps each until its directory changes. Owned by one event loop.

    Requests that come while their directory's digest is computed share that digest.
    """

    def __init__(self, store: GlobalStore, is_stopping: Callable[[], bool]) -> None:
        self._store = store
        self._is_stopping = is_stopping
        self._one_at_a_time = asyncio.Semaphore(1)
        self._tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._digests: dict[str, tuple[tuple[int, frozenset[bytes]], DirectoryDigest]] = {}

    async def of(self, directory: str) -> dict[str, Any]:
        """Return the document of a directory's digest. Raises NotReady, UnknownDirectory, StoreFailed, StoreClosed."""
        task = self._tasks.get(directory)
        if task is None:
            task = self._tasks[directory] = asyncio.ensure_future(self._run(directory))
        return await asyncio.shield(task)

    async def _run(self, directory: str) -> dict[str, Any]:
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(self._compute, directory)
        finally:
            del self._tasks[directory]

    def _compute(self, directory: str) -> dict[str, Any]:
        start = time.monotonic()
        with _snapshot(self._store, directory) as snapshot:
            state = snapshot.revision, snapshot.bad
            kept_state, digest = self._digests.get(directory, (None, None))
            if digest is None or kept_state != state:
                digest = snapshot.digest(self._pause())
        self._digests[directory] = state, digest
        return {
            **_header(snapshot),
            "seconds": round(time.monotonic() - start, 3),
            **_digest_fields(digest.total),
            "ranges": [_digest_fields(part) for part in digest.ranges],
        }

    def _pause(self) -> Callable[[], None]:
        """Return what pauses between slices. It raises NotReady once the server stops, which waits for this thread."""
        pause = _Pause()

        def pause_or_stop() -> None:
            pause()
            if self._is_stopping():
                raise NotReady("the server stops; ask again later, or another one")

        return pause_or_stop


class Listings:
    """Listings of records, a few at a time. Owned by the event loop."""

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._open: set[_Listing] = set()

    async def open(self, directory: str, ranges: Collection[int], *, with_values: bool) -> _Listing:
        """Return a listing as the answer to a request.

        Where too many are open, end the one whose client has not read for the longest time. Raises NotReady if all
        clients read, and as `Digests.of` does.
        """
        if len(self._open) >= _MOST_LISTINGS:
            self._end_unread()
        listing = _Listing(self._chunks(directory, ranges, with_values=with_values), self._open.discard)
        self._open.add(listing)
        await listing.start()
        return listing

    def _end_unread(self) -> None:
        oldest = min(self._open, key=lambda listing: listing.unread_since)
        if time.monotonic() - oldest.unread_since < _UNREAD_SECONDS:
            raise NotReady(f"{_MOST_LISTINGS} listings are being sent already; ask again when one is done")
        self._open.discard(oldest)
        oldest.end()

    def _chunks(self, directory: str, ranges: Collection[int], *, with_values: bool) -> Generator[bytes]:
        """Yield the lines of a listing, many in each chunk."""
        with _snapshot(self._store, directory) as snapshot:
            show = (shower(self._store[directory].directory) or bytes) if with_values else None
            chunk = bytearray()
            for document in _documents(snapshot, ranges, show):
                chunk += orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
                if len(chunk) >= _CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
            yield bytes(chunk)


class _Listing(StreamingResponse):
    """An answer whose lines are made while it is sent. Owned by the event loop."""

    def __init__(self, chunks: Generator[bytes], on_end: Callable[[_Listing], None]) -> None:
        super().__init__(self._content(), media_type=LINES, headers={"cache-control": "no-store"})
        self.unread_since = inf  # by the monotonic clock: when a chunk began to wait for the client
        self._chunks = chunks
        self._next_chunk: bytes | None = None
        self._on_end = on_end
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + _LISTING_SECONDS)

    async def start(self) -> None:
        """Make the first lines, before the answer begins: their error becomes an answer of its own."""
        try:
            self._next_chunk = await run_in_threadpool(next, self._chunks)
        except BaseException:
            self._on_end(self)
            raise

    def end(self) -> None:
        """Send no more, and close the connection."""
        self._scope.cancel()

    async def _content(self) -> AsyncIterator[bytes]:
        while self._next_chunk is not None:
            self.unread_since = time.monotonic()
            yield self._next_chunk
            self.unread_since = inf
            self._next_chunk = await run_in_threadpool(next, self._chunks, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the listing within its time limit, so that a client that does not read can't keep its place."""
        try:
            with self._scope:
                await super().__call__(scope, receive, send)
        finally:
            self._chunks.close()
            self._on_end(self)


class _Pause:
    """Pauses for as long as the work since the last pause took. Raises NotReady after ``seconds`` in all."""

    def __init__(self, seconds: float = inf) -> None:
        self._work_began = time.perf_counter()
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds

    def __call__(self) -> None:
        time.sleep(min(time.perf_counter() - self._work_began, 0.05))
        self._work_began = time.perf_counter()
        if time.monotonic() > self._deadline:
            raise NotReady(f"the listing was not taken within {self._seconds:g} s")


def _snapshot(store: GlobalStore, directory: str) -> DirectorySnapshot:
    try:
        return store.snapshot(directory)
    except WaitTimeout as error:  # the reader thread is busy: no answer to a precondition of the request
        raise NotReady(str(error)) from None


def _documents(
    snapshot: DirectorySnapshot, ranges: Collection[int], show: Callable[[bytes], bytes] | None
) -> Iterator[dict[str, Any]]:
    """Yield the header, the records and the number of records. ``show`` returns a value as answers show it."""
    yield _header(snapshot)
    count = 0
    remaining_bad_keys = {key for key in snapshot.bad if range_of(key) in ranges}
    for record in snapshot.records(ranges, _Pause(_LISTING_SECONDS)):
        is_bad = record.key in remaining_bad_keys
        remaining_bad_keys.discard(record.key)
        count += 1
        yield {
            **text_or_base64("key", record.key),
            "digest": record.digest.hex(),
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "bad": is_bad,
            **(text_or_base64("value", show(record.value)) if show is not None else {}),
        }
    for key in remaining_bad_keys:
        count += 1
        yield {**text_or_base64("key", key), "bad": True}
    yield {"records": count}


def _header(snapshot: DirectorySnapshot) -> dict[str, Any]:
    """Return what a digest and a listing say of the directory."""
    directory = snapshot.directory
    return {
        "directory": directory.name,
        "topic": directory.topic,
        "topic_id": snapshot.topic_id,
        "version": VERSION,
        "definition": {
            "key": directory.key,
            "active": directory.active,
            "envelope": directory.envelope_name,
            "decode": {dict: "object", bytes: "bytes", str: "text"}.get(directory.decode, "callable"),  # type: ignore[call-overload]
            "indexes": [list(index.fields) for index in directory.indexes],
        },
        "positions": {str(partition): position for partition, position in sorted(snapshot.positions.items())},
        "bad": len(snapshot.bad),
    }


def _digest_fields(digest: RangeDigest) -> dict[str, Any]:
    return {"count": digest.count, "digest": str(digest)}

"""Routes to digests of a directory's entries, for comparisons with its topic: see `compactory.read`.

The work runs in threads. After each slice of work it pauses for as long as the slice took, so that lookups go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Generator, Iterator
from typing import Annotated, Any

import anyio
import orjson
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.types import Receive, Scope, Send

from compactory.errors import NotReady, WaitTimeout
from compactory.read.digest import RANGES, VERSION, DirectoryDigest, RangeDigest, range_of
from compactory.read.snapshot import DirectorySnapshot
from compactory.store import GlobalStore

from ..http.models import Digest
from ..http.openapi import problems
from ..http.problem import BadRequest
from ..http.response import json_response, shower, text_or_base64

__all__ = ["digest_routes"]

_LINES = "application/x-ndjson"
_RANGES = r"^\d{1,3}(-\d{1,3})?(,\d{1,3}(-\d{1,3})?){0,255}$"
_PROBLEMS = problems(400, 401, 403, 404, 421, 503)
_CHUNK_BYTES = 64 << 10  # of lines that are sent at once
_MOST_LISTINGS = 4  # at a time: each keeps the values that were overwritten since it began
_LISTING_SECONDS = 300.0  # in which a client must read a listing


def digest_routes(store: GlobalStore, is_stopping: Callable[[], bool]) -> APIRouter:
    """Return the routes. They end a digest or listing once ``is_stopping`` returns True.

    They raise the errors of `problem`'s table.
    """
    routes = APIRouter(prefix="/v1/directories/{directory}/digest", tags=["operations"])
    digests = Digests(store, is_stopping)
    listings = Listings(store, is_stopping)

    @routes.get(
        "",
        operation_id="get_digest",
        summary="Digests of all that a directory holds, by key range, at exactly known positions",
        responses={200: {"model": Digest}, **_PROBLEMS},
    )
    async def digest(directory: str) -> Response:
        return json_response(await digests.of(directory))

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
            **_PROBLEMS,
        },
    )
    async def records(
        directory: str,
        ranges: Annotated[str, Path(description="7 or 0,7 or 16-31: of 0 to 255", pattern=_RANGES)],
        values: Annotated[bool, Query(description="Show the values too")] = False,
    ) -> Response:
        return await listings.open(directory, _range_numbers(ranges), with_values=values)

    return routes


def _range_numbers(text: str) -> frozenset[int]:
    """Return the numbers of ranges in ``0,7`` or ``16-31``. Raises BadRequest."""
    selected: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= RANGES:
            raise BadRequest(f"ranges: {part!r} is none; they go from 0 to {RANGES - 1}")
        selected.update(numbers)
    return frozenset(selected)


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
                digest = snapshot.digest(_Pause(self._is_stopping))
        self._digests[directory] = state, digest
        return {
            **_header(snapshot),
            "seconds": round(time.monotonic() - start, 3),
            **_digest_fields(digest.total),
            "ranges": [_digest_fields(part) for part in digest.ranges],
        }


class Listings:
    """Listings of records, a few at a time. Owned by the event loop."""

    def __init__(self, store: GlobalStore, is_stopping: Callable[[], bool]) -> None:
        self._store = store
        self._is_stopping = is_stopping
        self._open: set[_Listing] = set()

    async def open(self, directory: str, ranges: Collection[int], *, with_values: bool) -> _Listing:
        """Return a listing as the answer to a request. Raises NotReady if too many are open, and as `Digests.of`."""
        if len(self._open) >= _MOST_LISTINGS:
            raise NotReady(f"{_MOST_LISTINGS} listings are being sent already; ask again when one is done")
        listing = _Listing(self._chunks(directory, ranges, with_values=with_values), self._open.discard)
        self._open.add(listing)
        await listing.start()
        return listing

    def _chunks(self, directory: str, ranges: Collection[int], *, with_values: bool) -> Generator[bytes]:
        """Yield the lines of a listing, many in each chunk; first an empty chunk once the store has answered."""
        with _snapshot(self._store, directory) as snapshot:
            yield b""
            show = (shower(self._store[directory].directory) or bytes) if with_values else None
            chunk = bytearray()
            for document in _documents(snapshot, ranges, show, _Pause(self._is_stopping)):
                chunk += orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
                if len(chunk) >= _CHUNK_BYTES:
                    yield bytes(chunk)
                    chunk.clear()
            yield bytes(chunk)


class _Listing(StreamingResponse):
    """Sends chunks as they are made, until the client has read them or its time is over."""

    def __init__(self, chunks: Generator[bytes], on_end: Callable[[_Listing], None]) -> None:
        super().__init__(iterate_in_threadpool(chunks), media_type=_LINES, headers={"cache-control": "no-store"})
        self._chunks = chunks
        self._on_end = on_end

    async def start(self) -> None:
        """Open the snapshot before the answer begins: its error becomes an answer of its own."""
        try:
            await run_in_threadpool(next, self._chunks)
        except BaseException:
            self._on_end(self)
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the listing. Close the connection of a client that takes longer than ``_LISTING_SECONDS``."""
        try:
            with anyio.move_on_after(_LISTING_SECONDS):
                await super().__call__(scope, receive, send)
        finally:
            self._chunks.close()
            self._on_end(self)


class _Pause:
    """Pauses for as long as the work since the last pause took. Raises NotReady once the server stops."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._work_began = time.perf_counter()

    def __call__(self) -> None:
        time.sleep(min(time.perf_counter() - self._work_began, 0.05))
        self._work_began = time.perf_counter()
        if self._is_stopping():
            raise NotReady("the server stops; ask again later, or another one")


def _snapshot(store: GlobalStore, directory: str) -> DirectorySnapshot:
    try:
        return store.snapshot(directory)
    except WaitTimeout as error:  # the reader thread is busy: no answer to a precondition of the request
        raise NotReady(str(error)) from None


def _documents(
    snapshot: DirectorySnapshot, ranges: Collection[int], show: Callable[[bytes], bytes] | None, pause: _Pause
) -> Iterator[dict[str, Any]]:
    """Yield the header, the records and the number of records. ``show`` returns a value as answers show it."""
    yield _header(snapshot)
    count = 0
    remaining_bad_keys = {key for key in snapshot.bad if range_of(key) in ranges}
    for record in snapshot.records(ranges, pause):
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
        yield {**text_or_base64("key", key), "bad": True}
    yield {"records": count + len(remaining_bad_keys)}


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

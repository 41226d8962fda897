"""Client and AsyncClient: the entries of a server's directories, read and written over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar, Unpack, overload

import httpx2

from compactory.client.exchange import (
    Exchange,
    Given,
    Outcome,
    Request,
    Seen,
    Selection,
    Steps,
    Stored,
    WriteOptions,
    Written,
)
from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError
from compactory.mastered.operation import Operation
from compactory.token import Token

__all__ = ["AsyncClient", "AsyncEntries", "Client", "Entries"]

T = TypeVar("T")
R = TypeVar("R")
Json = dict[str, Any]


class _Settings:
    """Where the server is, and how long to wait for it. Raises ConfigError."""

    def __init__(self, url: str, token: str | None, timeout: float, wait: float) -> None:
        if httpx2.URL(url).scheme not in {"http", "https"}:
            raise ConfigError(f"url: must be http://HOST[:PORT] or https://HOST[:PORT], not {url!r}")
        self._url = url.rstrip("/")
        self._token = {} if token is None else {"authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._wait = wait
        self._seen: dict[str, Seen] = {}  # by directory

    def _exchange(self, directory: str | Directory[Any]) -> Exchange[Any]:
        chosen: Directory[Any] = Directory(directory) if isinstance(directory, str) else directory
        return Exchange(chosen, self._seen.setdefault(chosen.name, Seen()), self._timeout, self._wait)

    def _asked(self, request: Request) -> dict[str, Any]:
        headers = {**request.headers, **self._token}
        return {"method": request.method, "url": self._url + request.path, "headers": headers, "content": request.body}


class Client(_Settings):
    """Reads and writes entries over HTTP. Thread-safe; a ``with`` block closes it.

    ``url``      its base URL, http or https
    ``token``    the bearer token of a scope that may do what is asked
    ``timeout``  seconds for a request with its repeats; the server may take as long for each
    ``wait``     seconds that a read may wait until the server has what was written through this client
    ``http``     a client of httpx2 to use, with a proxy or certificates of its own; whoever made it closes it

    Raises ConfigError.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 10.0, wait: float = 5.0,
        http: httpx2.Client | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, token, timeout, wait)
        self._owns = http is None
        self._http = http if http is not None else httpx2.Client(timeout=timeout + wait)

    @overload
    def directory(self, directory: str) -> Entries[Json]: ...
    @overload
    def directory(self, directory: Directory[T]) -> Entries[T]: ...
    def directory(self, directory: str | Directory[Any]) -> Entries[Any]:
        """Return the entries of a directory: JSON objects, or what the ``decode`` of a `Directory` makes of them."""
        return Entries(self, self._exchange(directory))

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._owns:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def perform(self, steps: Steps[R]) -> R:
        """Send what these steps yield; return their result."""
        given: Given = None
        while True:
            try:
                step = steps.send(given)
            except StopIteration as end:
                result: R = end.value
                return result
            if not isinstance(step, Request):
                time.sleep(step)
                given = None
                continue
            try:
                given = self._http.request(**self._asked(step))
            except httpx2.TransportError as error:
                given = error


class AsyncClient(_Settings):
    """`Client` for one event loop: the same names, as coroutines. An ``async with`` block closes it."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 10.0, wait: float = 5.0,
        http: httpx2.AsyncClient | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, token, timeout, wait)
        self._owns = http is None
        self._http = http if http is not None else httpx2.AsyncClient(timeout=timeout + wait)

    @overload
    def directory(self, directory: str) -> AsyncEntries[Json]: ...
    @overload
    def directory(self, directory: Directory[T]) -> AsyncEntries[T]: ...
    def directory(self, directory: str | Directory[Any]) -> AsyncEntries[Any]:
        """Return the entries of a directory: JSON objects, or what the ``decode`` of a `Directory` makes of them."""
        return AsyncEntries(self, self._exchange(directory))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        if self._owns:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def perform(self, steps: Steps[R]) -> R:
        """Send what these steps yield; return their result."""
        given: Given = None
        while True:
            try:
                step = steps.send(given)
            except StopIteration as end:
                result: R = end.value
                return result
            if not isinstance(step, Request):
                await asyncio.sleep(step)
                given = None
                continue
            try:
                given = await self._http.request(**self._asked(step))
            except httpx2.TransportError as error:
                given = error


class Entries(Generic[T]):
    """The entries of one directory. Thread-safe. Writes take `WriteOptions`.

    All raise Unreachable, UnknownDirectory, and ConfigError where the request or its token is refused. Writes raise
    WriteRefused, Conflict, PreconditionFailed, EntryMissing: nothing was written; or WriteFailed, which says whether
    the outcome is ``unknown``.
    """

    def __init__(self, client: Client, exchange: Exchange[T]) -> None:
        self._client = client
        self._exchange = exchange

    def get(self, key: str) -> Stored[T]:
        """Look an entry up; it shows all that was written through this client. Raises EntryMissing, WaitTimeout."""
        return self._client.perform(self._exchange.read(key))

    def put(self, key: str, value: T, **options: Unpack[WriteOptions]) -> Stored[T]:
        """Create or replace an entry."""
        return self._client.perform(self._exchange.write("put", key, value, options))

    def patch(self, key: str, changes: Mapping[str, Any], **options: Unpack[WriteOptions]) -> Stored[T]:
        """Merge changes into an entry (RFC 7396)."""
        return self._client.perform(self._exchange.write("patch", key, changes, options))

    def post(self, value: T, **options: Unpack[WriteOptions]) -> Stored[T]:
        """Create an entry whose key the server derives from its fields."""
        return self._client.perform(self._exchange.write("post", None, value, options))

    def delete(self, key: str, **options: Unpack[WriteOptions]) -> Token:
        """Remove an entry."""
        return self._client.perform(self._exchange.delete(key, options))

    def items(self, **selection: Unpack[Selection]) -> Iterator[tuple[str, T]]:
        """List keys and values by key: all, or a `Selection`. Each entry that exists all the time comes once."""
        cursor: str | None = None
        while True:
            entries, cursor = self._client.perform(self._exchange.page(selection, cursor))
            yield from entries
            if cursor is None:
                return

    def bulk(self, operations: Iterable[Operation]) -> Iterator[Written | CompactoryError]:
        """Write many entries; give each operation's result, in order. They are sent as the results are taken.

        Lines have only the Idempotency-Keys that the operations have. So a request that may have been carried out is
        not repeated: WriteFailed with ``unknown``. Then send operations again that have keys, or read the entries.
        """
        for request in self._exchange.requests(operations):
            yield from self._client.perform(self._exchange.bulk(request))

    def outcome(self, written: Stored[T], *, wait: float = 0.0) -> Outcome:
        """Ask what became of a write that processors finish; wait up to so many seconds for it."""
        return self._client.perform(self._exchange.outcome(written, wait))


class AsyncEntries(Generic[T]):
    """The entries of one directory. For the client's event loop. Writes take `WriteOptions`.

    All raise Unreachable, UnknownDirectory, and ConfigError where the request or its token is refused. Writes raise
    WriteRefused, Conflict, PreconditionFailed, EntryMissing: nothing was written; or WriteFailed, which says whether
    the outcome is ``unknown``.
    """

    def __init__(self, client: AsyncClient, exchange: Exchange[T]) -> None:
        self._client = client
        self._exchange = exchange

    async def get(self, key: str) -> Stored[T]:
        """Look an entry up; it shows all that was written through this client. Raises EntryMissing, WaitTimeout."""
        return await self._client.perform(self._exchange.read(key))

    async def put(self, key: str, value: T, **options: Unpack[WriteOptions]) -> Stored[T]:
        """Create or replace an entry."""
        return await self._client.perform(self._exchange.write("put", key, value, options))

    async def patch(self, key: str, changes: Mapping[str, Any], **options: Unpack[WriteOptions]) -> Stored[T]:
        """Merge changes into an entry (RFC 7396)."""
        return await self._client.perform(self._exchange.write("patch", key, changes, options))

    async def post(self, value: T, **options: Unpack[WriteOptions]) -> Stored[T]:
        """Create an entry whose key the server derives from its fields."""
        return await self._client.perform(self._exchange.write("post", None, value, options))

    async def delete(self, key: str, **options: Unpack[WriteOptions]) -> Token:
        """Remove an entry."""
        return await self._client.perform(self._exchange.delete(key, options))

    async def items(self, **selection: Unpack[Selection]) -> AsyncIterator[tuple[str, T]]:
        """List keys and values by key: all, or a `Selection`. Each entry that exists all the time comes once."""
        cursor: str | None = None
        while True:
            entries, cursor = await self._client.perform(self._exchange.page(selection, cursor))
            for entry in entries:
                yield entry
            if cursor is None:
                return

    async def bulk(self, operations: Iterable[Operation]) -> AsyncIterator[Written | CompactoryError]:
        """Write many entries; give each operation's result, in order. They are sent as the results are taken.

        Lines have only the Idempotency-Keys that the operations have. So a request that may have been carried out is
        not repeated: WriteFailed with ``unknown``. Then send operations again that have keys, or read the entries.
        """
        for request in self._exchange.requests(operations):
            for result in await self._client.perform(self._exchange.bulk(request)):
                yield result

    async def outcome(self, written: Stored[T], *, wait: float = 0.0) -> Outcome:
        """Ask what became of a write that processors finish; wait up to so many seconds for it."""
        return await self._client.perform(self._exchange.outcome(written, wait))

"""Client and AsyncClient: the entries of a server's directories, read and written over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import httpx2

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError
from compactory_client.exchange import Exchange, Request, Seen, Selection, Steps, WriteResult
from compactory_client.failures import Given
from compactory_client.server_url import ServerUrl
from compactory_mastered.operation import Operation

__all__ = ["AsyncClient", "AsyncEntries", "Client", "Entries"]

H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Json = dict[str, Any]


class _Settings(Generic[H]):
    """The address of the server, and how long to wait for it. Raises ConfigError."""

    _make: Callable[..., H]

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 10.0, wait: float = 5.0, http: H | None = None
    ) -> None:
        if token is not None and not (token.isascii() and token.split() == [token]):
            raise ConfigError(
                "token: must be ASCII without spaces; one from a file may end with a line break, or be empty"
            )
        server = ServerUrl.parse(url, token)
        self._url = server.base
        self._login = {} if server.authorization is None else {"authorization": server.authorization}
        self._timeout, self._wait = timeout, wait
        self._seen: dict[str, Seen] = {}  # by directory
        self._owns = http is None
        self._http: H = self._make(timeout=timeout + wait) if http is None else http

    def _exchange(self, directory: str | Directory[Any]) -> Exchange[Any]:
        chosen: Directory[Any] = Directory(directory) if isinstance(directory, str) else directory
        return Exchange(chosen, self._seen.setdefault(chosen.name, Seen()), self._timeout, self._wait)

    def _asked(self, request: Request) -> dict[str, Any]:
        """Return the arguments of a request. A redirect is no answer: followed, a write would become a GET."""
        headers = {**request.headers, **self._login}
        place = {"method": request.method, "url": self._url + request.path}
        return {**place, "headers": headers, "content": request.body, "follow_redirects": False}


class Client(_Settings[httpx2.Client]):
    """Reads and writes entries over HTTP. Thread-safe; a ``with`` block closes it.

    ``url``      its base URL, http or https; with USER:PASSWORD@ for a proxy that asks for them
    ``token``    the bearer token of a scope that may do what is asked
    ``timeout``  seconds for a request with its repeats; the server may take as long for each
    ``wait``     seconds that a read may wait until the server has what was written through this client
    ``http``     a client of httpx2 to use, with a proxy or certificates of its own; its maker closes it

    Raises ConfigError.
    """

    _make = httpx2.Client

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
            given = None
            try:
                if isinstance(step, Request):
                    given = self._http.request(**self._asked(step))
                else:
                    time.sleep(step)
            except httpx2.TransportError as error:
                given = error


class AsyncClient(_Settings[httpx2.AsyncClient]):
    """`Client` for one event loop: the same names, as coroutines. An ``async with`` block closes it."""

    _make = httpx2.AsyncClient

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
            given = None
            try:
                if isinstance(step, Request):
                    given = await self._http.request(**self._asked(step))
                else:
                    await asyncio.sleep(step)
            except httpx2.TransportError as error:
                given = error


def _performed(steps: Callable[Concatenate[Exchange[T], P], Steps[R]]) -> Callable[Concatenate[Entries[T], P], R]:
    """Return the method of `Entries` that takes these steps, with their parameters and docstring."""

    @wraps(steps)
    def method(entries: Entries[T], /, *arguments: P.args, **options: P.kwargs) -> R:
        return entries.client.perform(steps(entries.exchange, *arguments, **options))

    return method


def _awaited(
    steps: Callable[Concatenate[Exchange[T], P], Steps[R]],
) -> Callable[Concatenate[AsyncEntries[T], P], Coroutine[Any, Any, R]]:
    """Return the coroutine method of `AsyncEntries` that takes these steps."""

    @wraps(steps)
    async def method(entries: AsyncEntries[T], /, *arguments: P.args, **options: P.kwargs) -> R:
        return await entries.client.perform(steps(entries.exchange, *arguments, **options))

    return method


class Entries(Generic[T]):
    """The entries of one directory. Thread-safe. Writes take `WriteOptions`.

    All raise Unreachable, UnknownDirectory, and ConfigError where the request or its token is refused. Writes raise
    WriteRefused, Conflict, PreconditionFailed, EntryMissing: nothing was written; or WriteFailed, which says whether
    the outcome is ``unknown``.
    """

    def __init__(self, client: Client, exchange: Exchange[T]) -> None:
        self.client = client
        self.exchange = exchange

    get = _performed(Exchange[T].get)
    put = _performed(Exchange[T].put)
    patch = _performed(Exchange[T].patch)
    post = _performed(Exchange[T].post)
    delete = _performed(Exchange[T].delete)
    outcome = _performed(Exchange[T].outcome)

    def items(self, **selection: Unpack[Selection]) -> Iterator[tuple[str, T]]:
        """List keys and values by key: all, or a `Selection`. Each entry that exists all the time comes once."""
        cursor: str | None = None
        while True:
            entries, cursor = self.client.perform(self.exchange.page(selection, cursor))
            yield from entries
            if cursor is None:
                return

    def bulk(self, operations: Iterable[Operation]) -> Iterator[WriteResult | CompactoryError]:
        """Write many entries; give each operation's result, in order. They are sent as the results are taken.

        Lines have only the Idempotency-Keys that the operations have. So a request that may have been carried out is
        not repeated: WriteFailed with ``unknown``. Then send operations again that have keys, or read the entries.
        """
        for request in self.exchange.requests(operations):
            yield from self.client.perform(self.exchange.bulk(request))


class AsyncEntries(Generic[T]):
    """`Entries` for the client's event loop: the same names, as coroutines and asynchronous iterators."""

    def __init__(self, client: AsyncClient, exchange: Exchange[T]) -> None:
        self.client = client
        self.exchange = exchange

    get = _awaited(Exchange[T].get)
    put = _awaited(Exchange[T].put)
    patch = _awaited(Exchange[T].patch)
    post = _awaited(Exchange[T].post)
    delete = _awaited(Exchange[T].delete)
    outcome = _awaited(Exchange[T].outcome)

    async def items(self, **selection: Unpack[Selection]) -> AsyncIterator[tuple[str, T]]:
        """List keys and values, as `Entries.items` does."""
        cursor: str | None = None
        while True:
            entries, cursor = await self.client.perform(self.exchange.page(selection, cursor))
            for entry in entries:
                yield entry
            if cursor is None:
                return

    async def bulk(self, operations: Iterable[Operation]) -> AsyncIterator[WriteResult | CompactoryError]:
        """Write many entries, as `Entries.bulk` does."""
        for request in self.exchange.requests(operations):
            for result in await self.client.perform(self.exchange.bulk(request)):
                yield result

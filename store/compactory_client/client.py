"""Client and AsyncClient: the entries of a server's directories, read and written over HTTP."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import httpx2

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.write.operation import Operation
from compactory_client.exchange import Exchange, OwnWrites, Request, Steps, next_step
from compactory_client.failures import Reply
from compactory_client.models import Selection, WriteResult
from compactory_client.server_url import ServerUrl

__all__ = ["AsyncClient", "AsyncEntries", "Client", "Entries"]

H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Json = dict[str, Any]


def _verify(server: ServerUrl) -> bool | ssl.SSLContext:
    """Return True for https; for http a context that trusts nobody, as reading authorities takes 0.1 s."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if server.base.startswith("http:") else True


class _BaseClient(Generic[H]):
    """The settings of both clients. Raises ConfigError."""

    _new_http: Callable[..., H]

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 10.0, wait: float = 5.0, http: H | None = None
    ) -> None:
        if token is not None and not (token.isascii() and token.split() == [token]):
            raise ConfigError(
                "token: must be ASCII without spaces, and not empty; check the file it comes from for a line break"
            )
        server = ServerUrl.parse(url, token)
        self._url = server.base
        self._login = {} if server.authorization is None else {"authorization": server.authorization}
        self._timeout, self._wait = timeout, wait
        self._own_writes: dict[str, OwnWrites] = {}  # by directory
        self._closes_http = http is None
        self._http: H = self._new_http(timeout=timeout + wait, verify=_verify(server)) if http is None else http

    def _exchange(self, directory: str | Directory[Any]) -> Exchange[Any]:
        described: Directory[Any] = Directory(directory) if isinstance(directory, str) else directory
        own_writes = self._own_writes.setdefault(described.name, OwnWrites())
        return Exchange(described, own_writes, self._timeout, self._wait)

    def _arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments of httpx2 for a request. No redirect is followed: it would turn a write into a GET."""
        return {
            "method": request.method,
            "url": self._url + request.path,
            "headers": {**request.headers, **self._login},
            "content": request.body,
            "follow_redirects": False,
        }

    def _any_route(self, method: str, path: str, body: bytes | None, timeout: float | None) -> dict[str, Any]:
        """Return the arguments of httpx2 for a request to any route."""
        headers = {"accept": "application/json"} | ({} if body is None else {"content-type": "application/json"})
        return {**self._arguments(Request(method, path, headers, body)), "timeout": timeout or self._timeout}

    def _unreached(self, error: httpx2.TransportError) -> Unreachable:
        message = f"{self._url} was not reached: {str(error) or type(error).__name__}; check that address"
        return Unreachable("HTTP", message)


class Client(_BaseClient[httpx2.Client]):
    """Reads and writes entries over HTTP. Thread-safe; a ``with`` block closes it.

    ``url``      base URL of the server, http or https; with USER:PASSWORD@ for a proxy with a login
    ``token``    bearer token with the scope that the requests need
    ``timeout``  seconds for a request with its repeats; the server may take as long for each
    ``wait``     seconds that a read may wait until the server has read the writes of this client
    ``http``     a client of httpx2 with a proxy or certificates of its own; the caller closes it

    Raises ConfigError.
    """

    _new_http = httpx2.Client

    @overload
    def directory(self, directory: str) -> Entries[Json]: ...
    @overload
    def directory(self, directory: Directory[T]) -> Entries[T]: ...
    def directory(self, directory: str | Directory[Any]) -> Entries[Any]:
        """Return the entries of a directory: JSON objects, or what the ``decode`` of a `Directory` returns."""
        return Entries(self, self._exchange(directory))

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._closes_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def perform(self, steps: Steps[R]) -> R:
        """Send the requests of a call; return its result."""
        step = next_step(steps, None)
        while isinstance(step, Request):
            time.sleep(step.delay)
            reply: Reply
            try:
                reply = self._http.request(**self._arguments(step))
            except httpx2.TransportError as error:
                reply = error
            step = next_step(steps, reply)
        return step.value

    @contextmanager
    def opened(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float | None = None
    ) -> Iterator[httpx2.Response]:
        """Send one request to any route; yield its response, also of an error, with the body not read yet.

        ``timeout``: seconds of silence. Raises Unreachable.
        """
        try:
            with self._http.stream(**self._any_route(method, path, body, timeout)) as response:
                yield response
        except httpx2.TransportError as error:
            raise self._unreached(error) from error


class AsyncClient(_BaseClient[httpx2.AsyncClient]):
    """`Client` for one event loop: the same names, as coroutines. An ``async with`` block closes it."""

    _new_http = httpx2.AsyncClient

    @overload
    def directory(self, directory: str) -> AsyncEntries[Json]: ...
    @overload
    def directory(self, directory: Directory[T]) -> AsyncEntries[T]: ...
    def directory(self, directory: str | Directory[Any]) -> AsyncEntries[Any]:
        """Return the entries of a directory: JSON objects, or what the ``decode`` of a `Directory` returns."""
        return AsyncEntries(self, self._exchange(directory))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        if self._closes_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def perform(self, steps: Steps[R]) -> R:
        """Send the requests of a call; return its result."""
        step = next_step(steps, None)
        while isinstance(step, Request):
            await asyncio.sleep(step.delay)
            reply: Reply
            try:
                reply = await self._http.request(**self._arguments(step))
            except httpx2.TransportError as error:
                reply = error
            step = next_step(steps, reply)
        return step.value

    @asynccontextmanager
    async def opened(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Send one request to any route, as `Client.opened` does."""
        try:
            async with self._http.stream(**self._any_route(method, path, body, timeout)) as response:
                yield response
        except httpx2.TransportError as error:
            raise self._unreached(error) from error


def _sync_method(steps: Callable[Concatenate[Exchange[T], P], Steps[R]]) -> Callable[Concatenate[Entries[T], P], R]:
    """Return the method of `Entries` that performs these steps, with their parameters and docstring."""

    @wraps(steps)
    def method(entries: Entries[T], /, *arguments: P.args, **options: P.kwargs) -> R:
        return entries.client.perform(steps(entries.exchange, *arguments, **options))

    return method


def _async_method(
    steps: Callable[Concatenate[Exchange[T], P], Steps[R]],
) -> Callable[Concatenate[AsyncEntries[T], P], Coroutine[Any, Any, R]]:
    """Return the coroutine method of `AsyncEntries` that performs these steps."""

    @wraps(steps)
    async def method(entries: AsyncEntries[T], /, *arguments: P.args, **options: P.kwargs) -> R:
        return await entries.client.perform(steps(entries.exchange, *arguments, **options))

    return method


class Entries(Generic[T]):
    """The entries of one directory. Thread-safe. Writes take `WriteOptions`.

    All raise Unreachable, UnknownDirectory, and ConfigError if the request or its token is refused. Writes raise
    WriteRefused, Conflict, PreconditionFailed, EntryMissing: nothing was written; or WriteFailed, which says whether
    the outcome is ``unknown``.
    """

    def __init__(self, client: Client, exchange: Exchange[T]) -> None:
        self.client = client
        self.exchange = exchange

    get = _sync_method(Exchange[T].get)
    put = _sync_method(Exchange[T].put)
    patch = _sync_method(Exchange[T].patch)
    post = _sync_method(Exchange[T].post)
    delete = _sync_method(Exchange[T].delete)
    write_batch = _sync_method(Exchange[T].write_batch)
    cursor = _sync_method(Exchange[T].cursor)
    outcome = _sync_method(Exchange[T].outcome)

    def items(self, **selection: Unpack[Selection]) -> Iterator[tuple[str, T]]:
        """Yield keys and values by key: all, or a `Selection`. An entry that exists all the time comes once."""
        cursor: str | None = None
        while True:
            entries, cursor = self.client.perform(self.exchange.page(selection, cursor))
            yield from entries
            if cursor is None:
                return

    def bulk(self, operations: Iterable[Operation]) -> Iterator[WriteResult | CompactoryError]:
        """Write many entries; yield the result of each operation, in order. Iterate to send further operations.

        Operations without an Idempotency-Key get none. So a request that may have been carried out is not repeated:
        WriteFailed with ``unknown``. Then repeat operations that have keys, and read the entries of the others.
        """
        for request in self.exchange.bulk_requests(operations):
            yield from self.client.perform(self.exchange.bulk(request))


class AsyncEntries(Generic[T]):
    """`Entries` for the client's event loop: the same names, as coroutines and asynchronous iterators."""

    def __init__(self, client: AsyncClient, exchange: Exchange[T]) -> None:
        self.client = client
        self.exchange = exchange

    get = _async_method(Exchange[T].get)
    put = _async_method(Exchange[T].put)
    patch = _async_method(Exchange[T].patch)
    post = _async_method(Exchange[T].post)
    delete = _async_method(Exchange[T].delete)
    write_batch = _async_method(Exchange[T].write_batch)
    cursor = _async_method(Exchange[T].cursor)
    outcome = _async_method(Exchange[T].outcome)

    async def items(self, **selection: Unpack[Selection]) -> AsyncIterator[tuple[str, T]]:
        """Yield keys and values, as `Entries.items` does."""
        cursor: str | None = None
        while True:
            entries, cursor = await self.client.perform(self.exchange.page(selection, cursor))
            for entry in entries:
                yield entry
            if cursor is None:
                return

    async def bulk(self, operations: Iterable[Operation]) -> AsyncIterator[WriteResult | CompactoryError]:
        """Write many entries, as `Entries.bulk` does."""
        for request in self.exchange.bulk_requests(operations):
            for result in await self.client.perform(self.exchange.bulk(request)):
                yield result

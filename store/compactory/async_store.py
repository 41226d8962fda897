"""AsyncGlobalStore: a GlobalStore for programs that run on asyncio. Lookups stay plain calls: they never wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from compactory.base_store import BaseStore
from compactory.clock import clock
from compactory.directory import Directory
from compactory.errors import CompactoryError, Unreachable, WaitTimeout
from compactory.read.snapshot import DirectorySnapshot
from compactory.read.store_snapshot import StoreSnapshot
from compactory.records import Partition
from compactory.store import GlobalStore
from compactory.threads import start_thread
from compactory.token import Token
from compactory.token import targets as targets_of
from compactory.waiting import Waiting
from compactory.watch.change import Change, Cursor

__all__ = ["AsyncGlobalStore"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _with_parameters_of(
    model: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a method the parameters of another one, for readers, type checkers and `inspect.signature`."""
    return wraps(model)


def _in_a_thread(
    method: Callable[Concatenate[GlobalStore, P], R],
) -> Callable[Concatenate[AsyncGlobalStore, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method with the parameters and the docstring of a `GlobalStore`'s, called in a thread."""

    @wraps(method)
    async def awaited(store: AsyncGlobalStore, /, *arguments: P.args, **options: P.kwargs) -> R:
        return await _in_thread(partial(method, store.sync, *arguments, **options), method.__name__)

    return awaited


class AsyncGlobalStore(BaseStore):
    """The directories of a `GlobalStore`; methods that wait are coroutines.

    These are ``start``, ``close``, ``barrier``, ``wait_for``, ``end_offsets``, ``retry`` and ``skip``. Everything else
    is the same, also the parameters. ``sync`` is the store itself, for functions that take one (probes, metrics).

    A thousand coroutines may wait: none of them holds a thread. Without waiters the store does no extra work. A
    coroutine that is cancelled stops waiting at once; cancelling ``start`` closes the store. The store is not bound to
    an event loop: start in one, use in another, wait in several at a time. Closing a loop ends the waits in it; the
    store runs until it is closed. Works on asyncio's own loop and on uvloop.

    Errors are those of `GlobalStore`. Other methods may be called by any thread.
    """

    @_with_parameters_of(GlobalStore.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._wrap(GlobalStore(*arguments, **options))

    @classmethod
    def of(cls, store: GlobalStore) -> Self:
        """Return the coroutines of a store that was made already, say one of `compactory.testing`."""
        wrapper = cls.__new__(cls)
        wrapper._wrap(store)  # noqa: SLF001 (this class's own)
        return wrapper

    def _wrap(self, store: GlobalStore) -> None:
        self.sync = store
        super().__init__(store._engine, store._views)  # noqa: SLF001 (of the same family)
        self._waiting = Waiting(store)
        self._end_requests: dict[asyncio.AbstractEventLoop, _SharedRequest] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Read every topic to its high watermark; return when the store is ready. Once per store.

        Raises what `GlobalStore.start` raises. If cancelled, it closes the store and returns when that is complete.
        """
        starting = asyncio.ensure_future(_in_thread(self.sync.start, "start"))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(CompactoryError):  # a start that is cut off says StoreClosed
                await _in_thread(self.sync.close, "close")
                await starting
            raise

    async def barrier(self, timeout: float = 5.0) -> None:
        """Wait until everything that was in the topics when this was called is visible.

        Raises what `GlobalStore.barrier` raises. Barriers that wait for the broker's answer share the next one.
        """
        self.sync.wait_for(timeout=0)  # refuses a store that was not started, or has ended
        deadline = clock() + timeout
        targets = await self._high_watermarks(timeout)
        await self._waiting.until(targets, max(0.0, deadline - clock()), "the barrier")

    async def wait_for(self, *tokens: Token, timeout: float = 5.0) -> None:
        """Wait until the written records of all tokens are visible.

        Raises what `GlobalStore.wait_for` raises.
        """
        self.sync.wait_for(timeout=0)
        deadline = clock() + timeout
        try:
            targets = targets_of(tokens, self.sync.topics())
        except WaitTimeout:  # unless the topic was created again and the store has not heard of it yet
            with suppress(Unreachable):
                await self._high_watermarks(timeout)
            targets = targets_of(tokens, self.sync.topics())
        awaited = "the token" if len(tokens) == 1 else "one of the tokens"
        await self._waiting.until(targets, max(0.0, deadline - clock()), awaited)

    close = _in_a_thread(GlobalStore.close)  # if cancelled, it continues in the background
    end_offsets = _in_a_thread(GlobalStore.end_offsets)
    retry = _in_a_thread(GlobalStore.retry)
    skip = _in_a_thread(GlobalStore.skip)

    @overload
    async def snapshot(self) -> StoreSnapshot: ...
    @overload
    async def snapshot(self, name: str, timeout: float = 5.0) -> DirectorySnapshot: ...
    async def snapshot(self, name: str | None = None, timeout: float = 5.0) -> StoreSnapshot | DirectorySnapshot:
        """Return all directories as they are now or, with ``name``, the contents of one, to compare with its topic.

        Raises what `GlobalStore.snapshot` raises.
        """
        take = self.sync.snapshot if name is None else partial(self.sync.snapshot, name, timeout)
        return await _in_thread(take, "snapshot")  # it waits for the batch that is being applied

    async def watch(self, directory: str | Directory[T], since: Cursor | None = None) -> AsyncIterator[Change[T]]:
        """Yield the changes of a directory, as `View.watch` does: from when the iteration begins, or from a cursor on.

        Raises what the iteration of a `Watch` raises. Close it (``contextlib.aclosing``) where it is left early.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        watch = await _in_thread(partial(self[directory].watch, since), "watch")

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        unsubscribe = watch.subscribe(notify)
        try:
            while True:
                changed.clear()
                while changes := watch.take():
                    for change in changes:
                        yield change
                await changed.wait()
        finally:
            unsubscribe()

    async def _high_watermarks(self, timeout: float) -> dict[Partition, int]:
        loop = asyncio.get_running_loop()
        request = self._end_requests.get(loop)
        if request is None:
            request = self._end_requests[loop] = _SharedRequest(self.sync)
        request.callers += 1
        try:
            async with asyncio.timeout(timeout):
                return await request.answer(timeout)
        except TimeoutError:
            raise Unreachable("Kafka", f"Kafka did not return the ends of the topics within {timeout:g} s") from None
        finally:
            request.callers -= 1
            if not request.callers:
                self._end_requests.pop(loop, None)


class _SharedRequest:
    """A request for the high watermarks, which callers in one event loop share."""

    def __init__(self, store: GlobalStore) -> None:
        self.callers = 0
        self._store = store
        self._running: asyncio.Task[dict[Partition, int]] | None = None
        self._next: asyncio.Task[dict[Partition, int]] | None = None  # the request that has not begun
        self._timeout = 0.0  # the longest of its callers

    async def answer(self, timeout: float) -> dict[Partition, int]:
        """Return the answer to a request that begins after this call: an earlier one may miss the latest writes."""
        self._timeout = max(self._timeout, timeout)
        if self._next is None:
            self._next = asyncio.ensure_future(self._request())
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # all callers may be gone
        return await asyncio.shield(self._next)

    async def _request(self) -> dict[Partition, int]:
        if self._running is not None:
            await asyncio.wait([self._running])
        self._running, self._next, timeout, self._timeout = self._next, None, self._timeout, 0.0
        return await _in_thread(partial(self._store.end_offsets, timeout), "ends")


async def _in_thread(function: Callable[[], R], name: str) -> R:
    """Call ``function`` in a new thread, as the loop's may all be busy. A cancelled call ends by itself."""
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()  # a coroutine that is cancelled must not cancel the call

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 (it is raised where it is awaited)
            future.set_exception(error)

    start_thread(name, call)
    return await asyncio.wrap_future(future)

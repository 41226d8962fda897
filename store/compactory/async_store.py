"""AsyncGlobalStore: a GlobalStore for programs that run on asyncio. Lookups stay plain calls: they never wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from compactory.directory import Directory
from compactory.errors import CompactoryError, Unreachable, WaitTimeout
from compactory.ingest.loading import Loading
from compactory.ingest.options import MissingTopic, OnBadRecord, UnusableDirectory, Validate
from compactory.lookup.snapshot import Holding
from compactory.lookup.view import View
from compactory.records import Contested, Partition, QuarantinedRecord, StoreState, Topic
from compactory.storage.backend import Backend
from compactory.store import GlobalStore
from compactory.token import Token
from compactory.token import targets as targets_of
from compactory.tracing import spanned
from compactory.waiting import Waiting

__all__ = ["AsyncGlobalStore"]

T = TypeVar("T")
R = TypeVar("R")


class AsyncGlobalStore(Mapping[str, View[Any]]):
    """The directories of a `GlobalStore`, with coroutines where that one waits.

    These are ``start``, ``close``, ``barrier``, ``wait_for``, ``end_offsets``, ``retry`` and ``skip``; all else is the
    same, the parameters too. ``sync`` is the store itself, for whatever takes one (probes, metrics).

    A thousand coroutines may wait: none of them holds a thread, and the store hears of nobody while nobody waits. A
    coroutine that is cancelled stops waiting at once; cancelling ``start`` closes the store. Nothing is bound to an
    event loop: start in one, use in another, wait in several at a time. Where a loop is closed, its waits are gone and
    the store runs on until it is closed. Works on asyncio's own loop and on uvloop.

    Errors are those of `GlobalStore`. Methods that are no coroutines may be called by any thread.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any],
        directories: Iterable[str | Directory[Any]],
        *,
        backend: Backend | None = None,
        stall_timeout: float = 30.0,
        start_timeout: float | None = None,
        on_bad_record: OnBadRecord = "quarantine",
        validate: Validate = "apply",
        tune_gc: bool = True,
        missing_topic: MissingTopic = "fail",
        unusable_directory: UnusableDirectory = "hold",
        start_stale: bool = False,
        on_progress: Callable[[Loading], None] | None = None,
        polling_timeout: float = 300.0,
        applying_timeout: float = 300.0,
    ) -> None:
        self.sync = GlobalStore(
            kafka,
            directories,
            backend=backend,
            stall_timeout=stall_timeout,
            start_timeout=start_timeout,
            on_bad_record=on_bad_record,
            validate=validate,
            tune_gc=tune_gc,
            missing_topic=missing_topic,
            unusable_directory=unusable_directory,
            start_stale=start_stale,
            on_progress=on_progress,
            polling_timeout=polling_timeout,
            applying_timeout=applying_timeout,
        )
        self._waiting = Waiting(self.sync)
        self._asking: dict[asyncio.AbstractEventLoop, _Ends] = {}

    def __repr__(self) -> str:
        return repr(self.sync).replace("GlobalStore", "AsyncGlobalStore", 1)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __getitem__(self, name: str) -> View[Any]:
        return self.sync[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sync)

    def __len__(self) -> int:
        return len(self.sync)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def directory(self, directory: Directory[T]) -> View[T]:
        """Return the view of a directory with its value type. Raises UnknownDirectory."""
        return self.sync.directory(directory)

    @property
    def directories(self) -> tuple[Directory[Any], ...]:
        """The directories in the order given."""
        return self.sync.directories

    @property
    def state(self) -> StoreState:
        """The state right now."""
        return self.sync.state

    @property
    def ready(self) -> bool:
        """Whether lookups are answered from complete data that is being kept up to date as far as Kafka allows."""
        return self.sync.ready

    @property
    def live(self) -> bool:
        """Whether the store still does its work; False asks for a restart of the process."""
        return self.sync.live

    @property
    def failure(self) -> BaseException | None:
        """What ended a FAILED store."""
        return self.sync.failure

    @property
    def load_seconds(self) -> float | None:
        """How long ``start`` took; None before it is done."""
        return self.sync.load_seconds

    @property
    def bad_records(self) -> int:
        """How many bad records were met since ``start``, those superseded since included."""
        return self.sync.bad_records

    async def start(self) -> None:
        """Read every topic to its high watermark; return when the store is ready. Once per store.

        Raises what `GlobalStore.start` raises. Cancelled, it closes the store and returns when that is complete.
        """
        starting = asyncio.ensure_future(_in_thread(self.sync.start, "start"))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(CompactoryError):  # a start that is cut off says StoreClosed
                await _in_thread(self.sync.close, "close")
                await starting
            raise

    async def close(self) -> None:
        """Stop reading, wake every waiter with StoreClosed, free the entries. Idempotent; complete on return.

        Cancelled, it goes on by itself.
        """
        await _in_thread(self.sync.close, "close")

    async def end_offsets(self, timeout: float = 5.0) -> dict[Partition, int]:
        """Ask the broker for the high watermark of every partition. Raises what `GlobalStore.end_offsets` raises."""
        return await _in_thread(partial(self.sync.end_offsets, timeout), "ends")

    @spanned("barrier")
    async def barrier(self, timeout: float = 5.0) -> None:
        """Wait until everything that was in the topics when this was called is visible.

        Raises what `GlobalStore.barrier` raises. Barriers that wait for the broker's answer share the next one.
        """
        self.sync.wait_for(timeout=0)  # refuses a store that was not started, or has ended
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                targets = await self._ends(timeout)
        except TimeoutError:
            raise Unreachable("Kafka", f"Kafka did not tell within {timeout:g} s how far the topics go") from None
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        await self._waiting.until(targets, left, "the barrier")

    @spanned("wait_for")
    async def wait_for(self, *tokens: Token, timeout: float = 5.0) -> None:
        """Wait until the written records of all tokens are visible.

        Raises what `GlobalStore.wait_for` raises.
        """
        self.sync.wait_for(timeout=0)
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            targets = targets_of(tokens, self.sync.topics())
        except WaitTimeout:  # unless the topic was created again and the store has not heard of it yet
            with suppress(Unreachable, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._ends(timeout)
            targets = targets_of(tokens, self.sync.topics())
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        await self._waiting.until(targets, left, "the token" if len(tokens) == 1 else "one of the tokens")

    async def retry(self, *errors: QuarantinedRecord, timeout: float = 5.0) -> list[QuarantinedRecord]:
        """Apply bad records once more (all outstanding ones without arguments); return those that are bad still.

        Raises what `GlobalStore.retry` raises.
        """
        return await _in_thread(partial(self.sync.retry, *errors, timeout=timeout), "retry")

    async def skip(self, *errors: QuarantinedRecord, timeout: float = 5.0) -> list[QuarantinedRecord]:
        """Let go of bad records, as if they had never come; return those that were not there any more.

        Raises what `GlobalStore.skip` raises.
        """
        return await _in_thread(partial(self.sync.skip, *errors, timeout=timeout), "skip")

    async def holding(self, name: str, timeout: float = 5.0) -> Holding:
        """Return what a directory holds at exactly known positions, to be compared with its topic. To be closed.

        Raises what `GlobalStore.holding` raises.
        """
        return await _in_thread(partial(self.sync.holding, name, timeout), "holding")

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition: all before it is visible."""
        return self.sync.positions()

    def lag(self) -> dict[Partition, int]:
        """Return the offsets between position and the last known end (at most some seconds old)."""
        return self.sync.lag()

    def ages(self) -> dict[Partition, float]:
        """Return the seconds since each partition was last known to be applied to its end."""
        return self.sync.ages()

    def stale(self) -> dict[str, str]:
        """Return why what is served of a topic is old, by topic. Empty unless the store is STALE."""
        return self.sync.stale()

    def rebuilds(self) -> dict[tuple[str, str], int]:
        """Return how often topics were read anew since ``start``, by topic and cause."""
        return self.sync.rebuilds()

    def loading(self) -> Loading:
        """Return how far the reading towards the high watermarks is, at the start or while a topic is read anew."""
        return self.sync.loading()

    def contested(self) -> list[Contested]:
        """Return keys that were met in two partitions of their topic; the first 1,000 of each directory."""
        return self.sync.contested()

    def figures(self) -> dict[tuple[str, str], float]:
        """Return what the backend says of its size and work, by topic ("" for what topics share) and name."""
        return self.sync.figures()

    def blocking(self) -> list[dict[str, Any]]:
        """Return what readiness waits for, as StartTimeout lists it."""
        return self.sync.blocking()

    def unusable(self) -> dict[str, str]:
        """Return why none of a directory's records is usable, by directory."""
        return self.sync.unusable()

    def topics(self) -> dict[str, Topic]:
        """Return the topics that are read, as the cluster last described them; empty before ``start``."""
        return self.sync.topics()

    def topic_id(self, topic: str) -> str | None:
        """Return the identity of a topic that is read; None before ``start`` and on a Kafka older than 2.8."""
        return self.sync.topic_id(topic)

    def quarantine(self) -> list[QuarantinedRecord]:
        """Return the outstanding bad records; the newest 1,000 of each directory are kept whole."""
        return self.sync.quarantine()

    def errors(self) -> list[QuarantinedRecord]:
        """Return `quarantine`: its former name, which goes with the next release."""
        return self.sync.quarantine()

    def outstanding(self) -> dict[str, int]:
        """Return how many bad records are outstanding, by directory."""
        return self.sync.outstanding()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change of positions or state; return what ends that.

        It is called by the store's threads, so it must be quick. ``loop.call_soon_threadsafe`` brings it to a loop.
        """
        return self.sync.subscribe(listener)

    async def _ends(self, timeout: float) -> dict[Partition, int]:
        loop = asyncio.get_running_loop()
        ends = self._asking.get(loop)
        if ends is None:
            ends = self._asking[loop] = _Ends(self.sync)
        ends.askers += 1
        try:
            return await ends.ask(timeout)
        finally:
            ends.askers -= 1
            if not ends.askers:
                self._asking.pop(loop, None)


class _Ends:
    """The high watermarks, asked once for everybody in one event loop who asks at a time."""

    def __init__(self, store: GlobalStore) -> None:
        self.askers = 0
        self._store = store
        self._begun: asyncio.Task[dict[Partition, int]] | None = None
        self._next: asyncio.Task[dict[Partition, int]] | None = None  # the question that has not begun
        self._timeout = 0.0  # and the longest that anybody wants to wait for it

    async def ask(self, timeout: float) -> dict[Partition, int]:
        """Return ends that were asked for after this was called: a question under way may miss the latest writes."""
        self._timeout = max(self._timeout, timeout)
        if self._next is None:
            self._next = asyncio.ensure_future(self._look())
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # all askers may be gone
        return await asyncio.shield(self._next)

    async def _look(self) -> dict[Partition, int]:
        if self._begun is not None:
            await asyncio.wait([self._begun])
        self._begun, self._next, timeout, self._timeout = self._next, None, self._timeout, 0.0
        return await _in_thread(partial(self._store.end_offsets, timeout), "ends")


async def _in_thread(function: Callable[[], R], name: str) -> R:
    """Call ``function`` in a thread of its own: the loop's may all be busy. Cancelled, the call ends by itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    context = copy_context()  # a span of the caller's is the parent of ours

    def call() -> None:
        try:
            settle = partial(_settle, future, context.run(function))
        except BaseException as error:  # noqa: BLE001 (it is raised where it is awaited)
            settle = partial(_fail, future, error)
        with suppress(RuntimeError):  # the loop is closed, and with it whoever awaited this
            loop.call_soon_threadsafe(settle)

    Thread(target=call, name=f"compactory-{name}", daemon=True).start()
    return await future


def _settle(future: asyncio.Future[R], answer: R) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

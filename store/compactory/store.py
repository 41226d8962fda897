"""GlobalStore: directories in memory or on disk, fed by Kafka topics, complete before the first lookup."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from compactory.apart import apart
from compactory.directory import Directory
from compactory.entries.table import Table
from compactory.errors import CompactoryError, ConfigError, UnknownDirectory, Unreachable, WaitTimeout
from compactory.forks import keep_forever
from compactory.ingest.engine import Engine
from compactory.ingest.gc_tuning import collector_paused, trim_early
from compactory.ingest.loading import Loading
from compactory.ingest.options import (
    MissingTopic,
    OnBadRecord,
    Options,
    UnusableDirectory,
    Validate,
    directory_problems,
)
from compactory.ingest.progress import clock
from compactory.kafka.client import Kafka
from compactory.lookup.snapshot import Holding
from compactory.lookup.view import View
from compactory.records import Contested, Partition, QuarantinedRecord, StoreState, Topic
from compactory.storage.backend import Backend
from compactory.storage.memory_backend import Memory
from compactory.token import Token
from compactory.token import targets as targets_of
from compactory.tracing import annotate, spanned

__all__ = ["GlobalStore"]

log = logging.getLogger("compactory.store")

T = TypeVar("T")


class GlobalStore(Mapping[str, View[Any]]):
    """Directories held in this process, whole, and kept up to date from Kafka: a mapping from name to `View`.

    ``kafka``            bootstrap servers, or librdkafka properties (TLS and SASL included)
    ``directories``      `Directory` objects, or names of topics that are looked up by record key
    ``backend``          where entries are kept; default: memory. ``RocksDB(path)`` keeps them on disk
    ``stall_timeout``    seconds without any progress after which ``start`` gives up
    ``start_timeout``    seconds after which ``start`` gives up in any case; None: only the stall counts
    ``on_bad_record``    ``quarantine`` keeps bad records aside and goes on; ``fail`` stops the store at the first
    ``validate``         ``apply`` decodes each value once when it is applied; ``read`` trusts the topic, which is
                         faster and gives up the guarantee about bad records
    ``tune_gc``          whether the cyclic garbage collector is paused inside ``start`` (and restored as found), and
                         glibc is told to return freed memory early
    ``missing_topic``    ``fail`` raises from ``start``; ``wait`` waits for topics that do not exist yet, as long as
                         ``start_timeout`` allows
    ``unusable_directory``  ``hold`` is not ready while none of a directory's records is usable (a wrong ``key``, model
                         or format; tombstones don't count); ``serve`` serves it without entries
    ``start_stale``      where the backend holds all directories complete, ``start`` returns at once with those (STALE),
                         Kafka reachable or not, and catches up behind them
    ``on_progress``      called with a `Loading` some times a second while ``start`` waits, by the thread that called it
    ``polling_timeout``  seconds without asking Kafka for records after which the store counts as not `live`
    ``applying_timeout`` seconds at one batch after which it counts as not `live`

    ``start`` returns when every partition is applied up to the high watermark captured when it was first seen. From
    then on the store serves, whatever happens to Kafka. Where what was read can't be gone on with (the topic was
    created again, records between were deleted, the log was cut off, tombstones may be gone) the topic is read anew
    beside what is served, which is STALE meanwhile. A reader that dies makes the store FAILED, which wakes every waiter
    and turns ``ready`` off, while lookups go on with the last complete data. All methods may be called by any thread.
    Raises ConfigError from the constructor with every problem at once.
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
        given = [Directory(item) if isinstance(item, str) else item for item in _listed(directories)]
        self._options = Options(
            stall_timeout=stall_timeout, start_timeout=start_timeout, on_bad_record=on_bad_record, validate=validate,
            tune_gc=tune_gc, missing_topic=missing_topic, unusable_directory=unusable_directory,
            start_stale=start_stale, on_progress=on_progress,
            polling_timeout=polling_timeout, applying_timeout=applying_timeout,
        )  # fmt: skip
        problems = [*directory_problems(given), *self._options.problems()]
        try:
            cluster = Kafka(kafka)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        self._pid = os.getpid()
        self._load_seconds: float | None = None
        self._engine = Engine(cluster, given, Memory() if backend is None else backend, self._options)
        self._progress, self._discovery = self._engine.progress, self._engine.discovery
        self._reader = self._engine.reader
        checked = validate == "apply"
        self._views: dict[str, View[Any]] = {
            each.name: View(each, self._engine.served[each.name], checked=checked) for each in given
        }
        # A store that is dropped without close() must not leave its threads behind; the engine doesn't refer to it.
        self._finalizer = weakref.finalize(self, apart, "close", self._engine.close)

    def __repr__(self) -> str:
        return f"<GlobalStore {', '.join(self._views)}: {self.state.value}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> View[Any]:
        view = self._views.get(name)
        if view is None:
            raise UnknownDirectory(f"the store has no directory {name!r}; it has: {', '.join(self._views)}")
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def directory(self, directory: Directory[T]) -> View[T]:
        """Return the view of a directory with its value type. Raises UnknownDirectory."""
        view = self[directory.name]
        if view.directory != directory:
            raise UnknownDirectory(f"the store's directory {directory.name!r} is defined otherwise")
        return view

    @property
    def directories(self) -> tuple[Directory[Any], ...]:
        """The directories in the order given."""
        return tuple(view.directory for view in self._views.values())

    @property
    def state(self) -> StoreState:
        """The state right now."""
        return self._progress.state

    @property
    def ready(self) -> bool:
        """Whether lookups are answered from complete data that is being kept up to date as far as Kafka allows."""
        return self._progress.serves

    @property
    def live(self) -> bool:
        """Whether the store still does its work; False asks for a restart of the process.

        False when it failed, was closed, did not ask Kafka for records for ``polling_timeout`` (the thread hangs) or
        is at one batch for longer than ``applying_timeout`` (a decoder hangs). Never for want of a reachable broker.
        """
        if self.state in (StoreState.FAILED, StoreState.CLOSED):
            return False
        if self.state is StoreState.NEW or not self._reader.running:
            return True
        since = self._reader.applying_since
        if since is not None:
            return clock() - since <= self._options.applying_timeout
        return clock() - self._reader.polled_at <= self._options.polling_timeout

    @property
    def failure(self) -> BaseException | None:
        """What ended a FAILED store."""
        return self._progress.cause

    @spanned("start")
    def start(self) -> None:
        """Read every topic to its high watermark; return when the store is ready. Once per store.

        Raises ConfigError (a topic does not exist, no right to read it), Unreachable (no broker within the time-outs),
        StartTimeout with the partitions that block, StoreFailed, StoreClosed.
        """
        if os.getpid() != self._pid:
            raise CompactoryError(_forked(self._pid))
        if not self._progress.move(StoreState.LOADING):
            self._progress.raise_end()
            raise CompactoryError("the store was started already; a store starts once")
        _started.add(self)
        began = clock()
        try:
            if self._options.tune_gc:
                trim_early()
            with collector_paused() if self._options.tune_gc else nullcontext():
                self._engine.load(began)
        except BaseException as error:
            self._progress.move(StoreState.FAILED, error)
            self._engine.give_up()
            self._finalizer.detach()  # it would keep the error, whose frames refer to this store, for ever
            raise
        self._load_seconds = clock() - began
        annotate(topics=sorted(self.topics()), records=self.loading().read, seconds=self._load_seconds)
        log.info("%s in %.3f s: %d partitions", self.state.value, self._load_seconds, len(self._progress.reached()))

    def close(self) -> None:
        """Stop reading, wake every waiter with StoreClosed, free the entries. Idempotent; complete on return.

        In a forked child nothing happens: files, connections and threads are the parent's.
        """
        if os.getpid() == self._pid:
            self._engine.close()
        self._finalizer.detach()

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition: all before it is visible. Never blocks.

        The partitions of a topic that is read anew are absent until it is served.
        """
        return self._progress.positions()

    def end_offsets(self, timeout: float = 5.0) -> dict[Partition, int]:
        """Ask the broker for the high watermark of every partition.

        Raises Unreachable, NotReady before ``start``, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        return self._discovery.look(timeout)

    def lag(self) -> dict[Partition, int]:
        """Return the offsets between position and the last known end (at most some seconds old). Never blocks.

        Control records of transactions and compacted holes count as offsets.
        """
        return self._progress.lag()

    def ages(self) -> dict[Partition, float]:
        """Return the seconds since each partition was last known to be applied to its end. Never blocks.

        At most some seconds while Kafka is reachable and nothing is behind. Partitions that never got there are absent.
        """
        now = clock()
        return {part: max(0.0, now - at) for part, (at, _) in self._progress.caught_up().items()}

    def stale(self) -> dict[str, str]:
        """Return why what is served of a topic is old, by topic. Empty unless the store is STALE."""
        return self._progress.stale()

    def rebuilds(self) -> dict[tuple[str, str], int]:
        """Return how often topics were read anew since ``start``, by topic and cause (see `RebuildCause`)."""
        return dict(self._progress.rebuilds)

    def loading(self) -> Loading:
        """Return how far the reading towards the high watermarks is, at the start or while a topic is read anew."""
        return self._progress.loading()

    def blocking(self) -> list[dict[str, Any]]:
        """Return what readiness waits for, as StartTimeout lists it.

        Partitions short of the high watermark, topics that do not exist, and directories none of whose records is
        usable (with ``directory`` and ``reason``).
        """
        return self._engine.blocking()

    def unusable(self) -> dict[str, str]:
        """Return why none of a directory's records is usable, by directory; a directory without records is absent."""
        return self._engine.unusable()

    def topics(self) -> dict[str, Topic]:
        """Return the topics that are read, as the cluster last described them; empty before ``start``."""
        return dict(self._discovery.topics)

    def topic_id(self, topic: str) -> str | None:
        """Return the identity of the topic that is served: while a topic is read anew that of the former one.

        None before ``start`` and on a Kafka older than 2.8.
        """
        topic_tables = self._engine.serving.get(topic)
        return topic_tables.topic_id if topic_tables is not None else None

    @property
    def load_seconds(self) -> float | None:
        """How long ``start`` took; None before it is done."""
        return self._load_seconds

    @property
    def bad_records(self) -> int:
        """How many bad records were met since ``start``, those superseded since included."""
        return sum(table.quarantine.total for table in self._engine.tables())

    def figures(self) -> dict[tuple[str, str], float]:
        """Return what the backend says of its size and work, by topic ("" for what topics share) and name."""
        found = {("", name): figure for name, figure in self._engine.backend.figures().items()}
        for topic, topic_tables in self._engine.tables_by_topic().items():
            found |= {(topic, name): figure for name, figure in topic_tables.storage.figures().items()}
        return found

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change of positions or state; return what ends that.

        It is called by the thread that made the change, so it must be quick. What it raises is logged, the first time.
        """
        self._progress.subscribe(listener)
        return partial(self._progress.unsubscribe, listener)

    def quarantine(self) -> list[QuarantinedRecord]:
        """Return the outstanding bad records: those that no newer record of the same key has superseded.

        The newest 1,000 of each directory (at most 64 MiB) are kept whole; `outstanding` counts them all.
        """
        return [bad for table in self._engine.tables() for bad in table.quarantine]

    def errors(self) -> list[QuarantinedRecord]:
        """Return `quarantine`: its former name, which goes with the next release."""
        return self.quarantine()

    def outstanding(self) -> dict[str, int]:
        """Return how many bad records are outstanding, by directory."""
        return {table.directory.name: table.quarantine.outstanding for table in self._engine.tables()}

    def contested(self) -> list[Contested]:
        """Return keys that were met in two partitions of their topic; the first 1,000 of each directory.

        Happens when a topic got more partitions, or is written with two partitioners. The newer record counts.
        """
        return [found for table in self._engine.tables() for found in list(table.contested_keys.values())]

    def retry(self, *errors: QuarantinedRecord, timeout: float = 5.0) -> list[QuarantinedRecord]:
        """Apply bad records once more (all outstanding ones without arguments); return those that are bad still.

        Worth it where a ``decode`` callable depends on something that has changed since. Those that were superseded or
        are not kept any more are returned too: nothing became good by them. Where it raises WaitTimeout the reader may
        still get done what it has begun. Raises WaitTimeout, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        return self._engine.deal(errors or tuple(self.quarantine()), Table.retry, timeout)

    def skip(self, *errors: QuarantinedRecord, timeout: float = 5.0) -> list[QuarantinedRecord]:
        """Let go of bad records, as if they had never come; return those that were not there any more.

        Their keys answer with the last good value, or are absent, from now on: nobody is told any more that there was
        a newer record. Raises WaitTimeout, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        return self._engine.deal(errors, lambda table, place: table.quarantine.skip(place), timeout)

    def holding(self, name: str, timeout: float = 5.0) -> Holding:
        """Return what a directory holds at exactly known positions, to be compared with its topic. To be closed.

        Raises UnknownDirectory, NotReady (also while the topic is read anew), WaitTimeout where the reader is at
        something else for so long, StoreFailed, StoreClosed.
        """
        view = self[name]
        self._refuse_idle()
        return self._engine.holding(view.directory, timeout)

    @spanned("barrier")
    def barrier(self, timeout: float = 5.0) -> None:
        """Wait until everything that was in the topics when this was called is visible.

        Partitions added since count. Raises WaitTimeout with the gap (an open transaction can be the cause),
        Unreachable, StoreFailed, StoreClosed.
        """
        began = clock()
        self._refuse_idle()
        targets = self._discovery.look(timeout)
        left = max(0.0, timeout - (clock() - began))
        self._progress.wait_until(targets, left, "the barrier")

    def wait_for(self, *tokens: Token, timeout: float = 5.0) -> None:
        """Wait until the written records of all tokens are visible.

        A token is satisfied by its own partition only. Raises ConfigError for a topic that the store does not read,
        WaitTimeout with the gap, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        if tokens:
            self._wait_for(tokens, timeout)

    @spanned("wait_for")
    def _wait_for(self, tokens: Sequence[Token], timeout: float) -> None:
        began = clock()
        try:
            targets = targets_of(tokens, self._discovery.topics)
        except WaitTimeout:  # of another topic of that name: perhaps of one that was created just now
            with suppress(Unreachable):
                self._discovery.look(timeout)
            targets = targets_of(tokens, self._discovery.topics)
        left = max(0.0, timeout - (clock() - began))
        self._progress.wait_until(targets, left, "the token" if len(tokens) == 1 else "one of the tokens")

    def _refuse_idle(self) -> None:
        if self.state is StoreState.NEW:
            raise self._progress.refusal()
        self._progress.raise_end()


_started: weakref.WeakSet[GlobalStore] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child the threads are gone: the copies must not answer from data that nobody keeps up to date."""
    for store in list(_started):
        store._engine.orphan(CompactoryError(_forked(store._pid)))  # noqa: SLF001 (this module's own class)
        keep_forever(store._engine)  # noqa: SLF001 (frames of the error that ended it may hold the parent's clients)
        store._finalizer.detach()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)


def _forked(pid: int) -> str:
    return (
        f"the store was made in process {pid} and this is process {os.getpid()}: threads and connections do not "
        "survive a fork. Make and start the store in each worker (gunicorn: post_fork; uvicorn: lifespan; "
        "multiprocessing: in the target, or the start method 'spawn')"
    )


def _listed(directories: Any) -> list[Any]:
    return [directories] if isinstance(directories, str | Directory) else list(directories)

"""GlobalStore: directories in memory, fed by Kafka topics, complete before the first lookup."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

from compactory.backend import Backend
from compactory.directory import Directory
from compactory.discovery import Discovery
from compactory.errors import CompactoryError, ConfigError, StartTimeout, UnknownDirectory, WaitTimeout
from compactory.feed import Feed
from compactory.heap import Memory
from compactory.kafka import Kafka
from compactory.memory import collector_paused
from compactory.progress import Progress
from compactory.reader import Reader
from compactory.records import Partition, RecordError, StoreState, Topic
from compactory.token import Token
from compactory.view import Served, View

__all__ = ["GlobalStore"]

log = logging.getLogger("compactory.store")

T = TypeVar("T")
OnBadRecord = Literal["quarantine", "fail"]
Validate = Literal["apply", "read"]


class GlobalStore:
    """Directories held in this process, whole, and kept up to date from Kafka.

    ``kafka``           bootstrap servers, or librdkafka properties (TLS and SASL included)
    ``directories``     `Directory` objects, or names of topics that are looked up by record key
    ``backend``         where entries are kept; default: memory
    ``stall_timeout``   seconds without any progress after which ``start`` gives up
    ``start_timeout``   seconds after which ``start`` gives up in any case; None: only the stall counts
    ``on_bad_record``   ``quarantine`` keeps bad records aside and goes on; ``fail`` stops the store at the first
    ``validate``        ``apply`` decodes each value once when it is applied; ``read`` trusts the topic, which is
                        faster and gives up the guarantee about bad records
    ``tune_gc``         whether the cyclic garbage collector is paused inside ``start`` (and restored as found)

    ``start`` returns when every partition is applied up to the high watermark captured when it was first seen. From
    then on the store serves, whatever happens to Kafka; a reader that dies makes it FAILED, which wakes every waiter
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
    ) -> None:
        given = [Directory(item) if isinstance(item, str) else item for item in _listed(directories)]
        problems = [
            *_directory_problems(given),
            *_option_problems(on_bad_record, validate, stall_timeout, start_timeout),
        ]
        try:
            self._kafka = Kafka(kafka)
        except ConfigError as error:
            problems.extend(error.problems)
        if problems:
            raise ConfigError(problems)
        self._stall_timeout = stall_timeout
        self._start_timeout = start_timeout
        self._tune_gc = tune_gc
        self._backend = Memory() if backend is None else backend
        self._pid = os.getpid()
        self._closing = Lock()  # guards close against itself
        self._progress = Progress()
        self._load_seconds: float | None = None
        self._served: dict[str, Served] = {}
        by_topic: dict[str, list[Directory[Any]]] = {}
        for directory in given:
            by_topic.setdefault(directory.topic, []).append(directory)
        self._feeds = {
            topic: Feed(
                topic, fed, self._backend.open(topic), validate=validate == "apply", strict=on_bad_record == "fail"
            )
            for topic, fed in by_topic.items()
        }
        for feed in self._feeds.values():
            for table in feed.tables:
                self._served[table.directory.name] = Served(table, self._progress.refusal)
        self._views: dict[str, View[Any]] = {
            directory.name: View(directory, self._served[directory.name]) for directory in given
        }
        self._discovery = Discovery(self._kafka, by_topic, self._progress)
        on_complete = partial(_serve, tuple(self._served.values()), self._progress)
        self._reader = Reader(self._kafka, self._feeds, self._progress, on_complete)
        # A store that is dropped without close() must not leave its threads behind; nothing here refers to the store.
        self._finalizer = weakref.finalize(self, _stop, self._reader, self._discovery)

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
        return self.state in (StoreState.READY, StoreState.STALE)

    @property
    def failure(self) -> BaseException | None:
        """What ended a FAILED store."""
        return self._progress.cause

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
        began = time.monotonic()
        try:
            with collector_paused() if self._tune_gc else nullcontext():
                self._load()
        except BaseException as error:
            self._progress.move(StoreState.FAILED, error)
            _stop(self._reader, self._discovery)
            raise
        self._load_seconds = time.monotonic() - began
        log.info("ready in %.3f s: %d partitions", self._load_seconds, len(self._progress.positions()))

    def close(self) -> None:
        """Stop reading, wake every waiter with StoreClosed, free the entries. Idempotent; complete on return."""
        with self._closing:
            if not self._progress.move(StoreState.CLOSED):
                return
            for served in self._served.values():
                served.open = False
            self._finalizer()
            for feed in self._feeds.values():
                feed.volume.close()
            self._backend.close()
            self._kafka.close()

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition: all before it is visible. Never blocks."""
        return self._progress.positions()

    def end_offsets(self, timeout: float = 5.0) -> dict[Partition, int]:
        """Ask the broker for the high watermark of every partition. Raises Unreachable."""
        return self._discovery.look(timeout)

    def lag(self) -> dict[Partition, int]:
        """Return the offsets between position and the last known end (at most some seconds old). Never blocks.

        Control records of transactions and compacted holes count as offsets.
        """
        positions = self.positions()
        return {part: max(0, end - positions.get(part, 0)) for part, end in self._progress.ends.items()}

    def ages(self) -> dict[Partition, float]:
        """Return the seconds since each partition was last known to be applied to its end. Never blocks.

        At most some seconds while Kafka is reachable and nothing is behind. Partitions that never got there are absent.
        """
        now = time.monotonic()
        return {part: max(0.0, now - at) for part, at in self._progress.caught_up().items()}

    def blocking(self) -> list[dict[str, Any]]:
        """Return the partitions short of the high watermark that readiness waits for, as StartTimeout lists them."""
        return self._progress.blocking()

    def topics(self) -> dict[str, Topic]:
        """Return the topics that are read, as the cluster last described them; empty before ``start``."""
        return dict(self._discovery.topics)

    def topic_id(self, topic: str) -> str | None:
        """Return the identity of a topic that is read; None before ``start`` and on a Kafka older than 2.8."""
        found = self._discovery.topics.get(topic)
        return found.topic_id if found is not None else None

    @property
    def load_seconds(self) -> float | None:
        """How long ``start`` took; None before it is done."""
        return self._load_seconds

    @property
    def bad_records(self) -> int:
        """How many bad records were met since ``start``, those superseded since included."""
        return sum(served.table.quarantine.total for served in self._served.values())

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change of positions or state; return what ends that.

        It is called by the thread that made the change: it must be quick and must not raise.
        """
        self._progress.subscribe(listener)
        return partial(self._progress.unsubscribe, listener)

    def errors(self) -> list[RecordError]:
        """Return the outstanding bad records: those that no newer record of the same key has superseded.

        The newest 1,000 of each directory (at most 64 MiB) are kept whole.
        """
        return [error for served in self._served.values() for error in served.table.quarantine]

    def barrier(self, timeout: float = 5.0) -> None:
        """Wait until everything that was in the topics when this was called is visible.

        Partitions added since count. Raises WaitTimeout with the gap (an open transaction can be the cause),
        Unreachable, StoreFailed, StoreClosed.
        """
        began = time.monotonic()
        self._refuse_idle()
        targets = self._discovery.look(timeout)
        left = max(0.0, timeout - (time.monotonic() - began))
        self._progress.wait_until(targets, left, "the barrier")

    def wait_for(self, *tokens: Token, timeout: float = 5.0) -> None:
        """Wait until the written records of all tokens are visible.

        A token is satisfied by its own partition only. Raises ConfigError for a topic that the store does not read,
        WaitTimeout with the gap, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        targets: dict[Partition, int] = {}
        for token in tokens:
            topic = self._discovery.topics.get(token.topic)
            if topic is None:
                known = ", ".join(sorted(self._discovery.topics))
                raise ConfigError(f"token {token} is of a topic that this store does not read; it reads {known}")
            if token.topic_id and topic.topic_id and token.topic_id != topic.topic_id:
                gone = f"token {token} belongs to a topic of that name that was deleted since"
                raise WaitTimeout(gone, {token.place: token.offset + 1})
            targets[token.place] = max(targets.get(token.place, 0), token.offset + 1)
        self._progress.wait_until(targets, timeout, "the token" if len(tokens) == 1 else "one of the tokens")

    def _load(self) -> None:
        limits = [limit for limit in (self._stall_timeout, self._start_timeout) if limit is not None]
        began = time.monotonic()
        self._discovery.open(min(limits))
        self._reader.start()
        self._discovery.start()
        try:
            self._progress.wait_loaded(self._stall_timeout, self._start_timeout, began)
        except StartTimeout as error:
            raise self._explained(error) from None

    def _explained(self, error: StartTimeout) -> StartTimeout:
        """Add to a time-out which partitions block, and why."""
        blocking = self._progress.blocking()
        places = [Partition(item["topic"], item["partition"]) for item in blocking]
        try:
            stable = self._kafka.stable_offsets(places, timeout=2.0)
        except CompactoryError as unreachable:
            stable = {}
            unknown = str(unreachable)
        else:
            unknown = self._reader.last_error or "nothing comes from the broker"
        for place, item in zip(places, blocking, strict=True):
            limit = stable.get(place)
            if limit is not None and limit <= item["position"]:
                item["reason"] = f"an open transaction holds the last stable offset at {limit}"
            else:
                item["reason"] = unknown
        line = "{topic} partition {partition} is at {position} of {target}: {reason}"
        return StartTimeout(f"{error}: {'; '.join(line.format(**item) for item in blocking)}", blocking)

    def _refuse_idle(self) -> None:
        if self.state is StoreState.NEW:
            raise self._progress.refusal()
        self._progress.raise_end()


_started: weakref.WeakSet[GlobalStore] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child the threads are gone: the copies must not answer from data that nobody keeps up to date."""
    for store in list(_started):
        store._progress.orphan(CompactoryError(_forked(store._pid)))  # noqa: SLF001 (this module's own class)
        for served in store._served.values():  # noqa: SLF001
            served.open = False


os.register_at_fork(after_in_child=_after_fork)


def _forked(pid: int) -> str:
    return (
        f"the store was made in process {pid} and this is process {os.getpid()}: threads and connections do not "
        "survive a fork. Make and start the store in each worker (gunicorn: post_fork; uvicorn: lifespan; "
        "multiprocessing: in the target, or the start method 'spawn')"
    )


def _serve(served: Iterable[Served], progress: Progress) -> None:
    """Open the views, then say so."""
    for each in served:
        each.open = progress.state is StoreState.LOADING
    progress.move(StoreState.READY)


def _stop(reader: Reader, discovery: Discovery) -> None:
    reader.stop()
    discovery.stop()


def _listed(directories: Any) -> list[Any]:
    return [directories] if isinstance(directories, str | Directory) else list(directories)


def _directory_problems(directories: list[Any]) -> list[str]:
    problems = [
        f"directories must be Directory objects or names, not {item!r}"
        for item in directories
        if not isinstance(item, Directory)
    ]
    names = [item.name for item in directories if isinstance(item, Directory)]
    problems.extend(f"two directories are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1)
    if not directories:
        problems.append("directories is empty: name at least one")
    return problems


def _option_problems(on_bad_record: str, validate: str, stall_timeout: float, start_timeout: float | None) -> list[str]:
    problems = []
    for name, value, kind in (("on_bad_record", on_bad_record, OnBadRecord), ("validate", validate, Validate)):
        if value not in get_args(kind):
            problems.append(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}")
    for name, seconds in (("stall_timeout", stall_timeout), ("start_timeout", start_timeout)):
        if seconds is not None and not seconds > 0:
            problems.append(f"{name} must be a number of seconds above 0, not {seconds!r}")
    return problems

"""A `GlobalStore` for the tests of a service: its topics are in this process, everything else is the real store.

from compactory import testing

with testing.store({"terminals": {"T1": {"acquirerId": "A1"}}}) as store:
    store.put("terminals", "T1", {"acquirerId": "A2"})
    assert store["terminals"]["T1"] == {"acquirerId": "A2"}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Condition, Event
from typing import Any, Self, overload

from compactory.codec.encoding import encode_value
from compactory.directory import Directory
from compactory.errors import WaitTimeout
from compactory.kafka.client import Kafka, Message
from compactory.records import Partition, Rebuild, RebuildCause, Topic
from compactory.storage.checkpoint import CaughtUp, Checkpoint
from compactory.store import GlobalStore
from compactory.token import Token

__all__ = ["InProcessStore", "store"]

Entries = Mapping[str, Any]  # of one directory, by key
_VISIBLE_TIMEOUT = 5.0  # seconds that a change may take to become visible


@overload
def store(entries: Mapping[Directory[Any], Entries], *, start: bool = True, **options: Any) -> InProcessStore: ...
@overload
def store(entries: Mapping[str, Entries], *, start: bool = True, **options: Any) -> InProcessStore: ...
@overload
def store(entries: Mapping[str | Directory[Any], Entries], *, start: bool = True, **options: Any) -> InProcessStore: ...
def store(entries: Mapping[Any, Entries], *, start: bool = True, **options: Any) -> InProcessStore:
    """Return a store with these entries, by directory and record key; it is started unless ``start`` is False.

    A directory is a `Directory`, or a name for one without options. ``put`` says what a value may be. ``options``
    are those of `GlobalStore`. Close the store, or use it in a ``with`` block. Raises what `GlobalStore.start` raises.
    """
    in_process = InProcessStore(entries, **options)
    for directory, rows in entries.items():
        for key, value in rows.items():
            in_process.put(directory, key, value)
    if start:
        in_process.start()
    return in_process


class InProcessStore(GlobalStore):
    """A `GlobalStore` that reads topics of this process: no broker, no network.

    Made by `store`. Records go the way of real ones: through the reader into the tables that views read. Errors,
    waits, bad records and positions are therefore the same. It can't show transactions, compaction,
    several partitions or the time that a network takes. All methods may be called by any thread.
    """

    def __init__(self, directories: Iterable[str | Directory[Any]], **options: Any) -> None:
        self._cluster = _Cluster()
        options = {"tune_gc": False, "stall_timeout": _VISIBLE_TIMEOUT, **options}
        super().__init__(self._cluster, directories, **options)
        self._cluster.create(directory.topic for directory in self.directories)

    def __enter__(self) -> Self:
        if self.load_seconds is None:
            self.start()
        return self

    def put(self, directory: str | Directory[Any], key: str | None, value: Any, *, timestamp_ms: int = -1) -> Token:
        """Append a record to the directory's topic; return when lookups see it.

        ``key`` is the key of the record. ``value`` is a dict, a dataclass, a pydantic model or a msgspec Struct, which
        become JSON inside the directory's envelope; or text or bytes, which go as they are (a bad record too).
        ``timestamp_ms`` is in milliseconds since 1970 UTC; -1 means now. While the directory is stale, and before
        ``start``, the record waits in the topic. Raises UnknownDirectory, StoreFailed, StoreClosed.
        """
        definition = self[directory].directory
        token = self._cluster.append(definition.topic, key, encode_value(value, definition.envelope), timestamp_ms)
        if self.ready and definition.topic not in self.stale():
            self.wait_for(token, timeout=_VISIBLE_TIMEOUT)
        return token

    def delete(self, directory: str | Directory[Any], key: str, *, timestamp_ms: int = -1) -> Token:
        """Append a tombstone; else as `put`."""
        return self.put(directory, key, None, timestamp_ms=timestamp_ms)

    def become_stale(self, *directories: str | Directory[Any], age: float = 3600.0) -> None:
        """Make directories (default: all) STALE, with data ``age`` seconds old, as when their topics are read anew.

        Lookups go on with what was there; reads that demand a ``max_age`` below ``age`` see stale data.
        `become_current` ends that. Directories of one topic go together. Raises NotReady before ``start``.
        """
        self._refuse_idle()
        marks = {0: CaughtUp(at=time.time() - age, end=0)}
        old = Checkpoint(topic_id=None, cluster_id=None, definition="", positions={}, caught_up=marks)
        for topic in {self[directory].directory.topic for directory in directories or self}:
            self._progress.resume(topic, old)
            if self._cluster.hold(topic):
                self._progress.demand(topic, Rebuild(RebuildCause.RECREATED, "the test made it stale"))

    def become_current(self) -> None:
        """End what `become_stale` began; return when the topics are read anew and lookups see every record."""
        self._cluster.release()
        self._await("the topics were not read anew", lambda: not self.stale())

    def fail(self, cause: BaseException | None = None) -> None:
        """End the reader's thread with ``cause``: the store is FAILED; lookups go on if it had been ready.

        Returns when that is so. Raises NotReady before ``start``, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        self._cluster.fail(cause or RuntimeError("the test let the reader fail"))
        self._await("the store did not fail", lambda: self.failure is not None)

    def _await(self, otherwise: str, reached: Callable[[], bool]) -> None:
        has_reached = Event()
        end = self.subscribe(lambda: has_reached.set() if reached() else None)
        try:
            if not reached() and not has_reached.wait(_VISIBLE_TIMEOUT):
                raise WaitTimeout(f"{otherwise} in {_VISIBLE_TIMEOUT:g} s", {})
        finally:
            end()


class _Cluster(Kafka):
    """Topics of one partition in this process, as far as a store asks for them. Thread-safe."""

    def __init__(self) -> None:
        super().__init__("in-process.invalid:9092")  # opens no connection
        self._records: dict[str, list[Message]] = {}
        self._paused_topics: set[str] = set()  # whose records don't arrive
        self._failure: BaseException | None = None
        self._is_interrupted = False
        self._changed = Condition()  # guards all of the above

    def create(self, topics: Iterable[str]) -> None:
        with self._changed:
            self._records.update((topic, []) for topic in topics)

    def append(self, topic: str, key: str | None, value: bytes | None, timestamp_ms: int = -1) -> Token:
        stamp = (1, int(time.time() * 1000) if timestamp_ms < 0 else timestamp_ms)
        name = None if key is None else key.encode()
        with self._changed:
            records = self._records[topic]
            token = Token(topic, 0, len(records))
            records.append(
                Message(topic=topic, partition=0, offset=token.offset, key=name, value=value, timestamp=stamp)
            )
            self._changed.notify_all()
        return token

    def hold(self, topic: str) -> bool:
        """Pause the arrival of a topic's records; return False if it is paused already."""
        with self._changed:
            if topic in self._paused_topics:
                return False
            self._paused_topics.add(topic)
        self.append(topic, "\0", None)  # what is read anew is not complete without the records of the paused topic
        return True

    def release(self) -> None:
        with self._changed:
            self._paused_topics.clear()
            self._changed.notify_all()

    def fail(self, cause: BaseException) -> None:
        with self._changed:
            self._failure = cause
            self._changed.notify_all()

    def take(self, positions: dict[str, int], number: int, timeout: float) -> list[Message]:
        """Return records from these positions on, and move the positions; wait for the first one."""

        def waiting() -> list[str]:
            return [t for t, at in positions.items() if t not in self._paused_topics and at < len(self._records[t])]

        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._is_interrupted or bool(waiting()), timeout
            )
            if self._failure is not None:
                raise self._failure
            messages: list[Message] = []
            for topic in waiting():
                begin = positions[topic]
                records = self._records[topic][begin : begin + number - len(messages)]
                positions[topic] = begin + len(records)
                messages += records
            return messages

    def topics(self, names: Iterable[str], timeout: float = 0) -> dict[str, Topic]:  # noqa: ARG002
        return {name: Topic(name=name, topic_id=f"in-process-{name}", partitions=(0,)) for name in names}

    def topic_names(self, timeout: float = 0) -> list[str]:  # noqa: ARG002
        return sorted(self._records)

    def cluster_id(self, timeout: float = 0) -> str:  # noqa: ARG002
        return "in-process"

    def high_watermarks(self, partitions: Iterable[Partition], timeout: float = 0) -> dict[Partition, int]:  # noqa: ARG002
        with self._changed:
            return {part: len(self._records[part.topic]) for part in partitions}

    stable_offsets = high_watermarks

    def log_starts(self, partitions: Iterable[Partition], timeout: float = 0) -> dict[Partition, int]:  # noqa: ARG002
        return dict.fromkeys(partitions, 0)

    def topic_configs(self, names: Iterable[str], timeout: float = 0) -> dict[str, dict[str, str]]:  # noqa: ARG002
        return {name: {} for name in names}

    def consumer(self, *_: Any, **__: Any) -> Any:
        return _Consumer(self)

    def interrupt(self) -> None:
        with self._changed:
            self._is_interrupted = True
            self._changed.notify_all()


class _Consumer:
    """A consumer of a `_Cluster`."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._positions: dict[str, int] = {}

    def incremental_assign(self, places: Sequence[Any]) -> None:
        self._positions.update((place.topic, place.offset) for place in places)

    def consume(self, number: int, timeout: float) -> list[Message]:
        return self._cluster.take(self._positions, number, timeout)

    def close(self) -> None: ...

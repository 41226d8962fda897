"""The surface that both stores share: views, state, positions, bad records. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from compactory.clock import clock
from compactory.directory import Directory
from compactory.ingest.engine import Engine
from compactory.kafka.client import Kafka
from compactory.loading import Loading
from compactory.options import StoreOptions
from compactory.read.store_snapshot import Views
from compactory.read.view import View
from compactory.records import Contested, Partition, QuarantinedRecord, StoreState, Topic

__all__ = ["BaseStore"]


class BaseStore(Views):
    """A mapping from names of directories to their views; ``store[directory]`` is a view that knows its values' type.

    All methods may be called by any thread.
    """

    def __init__(self, engine: Engine, views: Mapping[str, View[Any]]) -> None:
        super().__init__(views)
        self._engine = engine
        self._progress, self._discovery, self._reader = engine.progress, engine.discovery, engine.reader

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._views)}: {self.state.value}>"

    @property
    def directories(self) -> tuple[Directory[Any], ...]:
        """The directories in the order given."""
        return tuple(view.directory for view in self._views.values())

    @property
    def options(self) -> StoreOptions:
        """The options that the store was made with."""
        return self._engine.options

    @property
    def kafka(self) -> Kafka:
        """The cluster that the store reads, with the store's rights. Closing the store ends its pending requests."""
        return self._engine.kafka

    @property
    def state(self) -> StoreState:
        """The state right now."""
        return self._progress.state

    @property
    def ready(self) -> bool:
        """True while lookups are answered from complete data that is kept up to date as far as Kafka allows."""
        return self._progress.serves

    @property
    def live(self) -> bool:
        """True while the store does its work; False asks for a restart of the process.

        False after the store failed or was closed, did not ask Kafka for records for ``polling_timeout`` (the thread
        hangs), or applies one batch for longer than ``applying_timeout`` (a decoder hangs). Never for want of a
        reachable broker.
        """
        if self.state in (StoreState.FAILED, StoreState.CLOSED):
            return False
        if self.state is StoreState.NEW or not self._reader.running:
            return True
        since = self._reader.applying_since
        if since is not None:
            return clock() - since <= self.options.applying_timeout
        return clock() - self._reader.polled_at <= self.options.polling_timeout

    @property
    def failure(self) -> BaseException | None:
        """The error that ended a FAILED store."""
        return self._progress.cause

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition: all before it is visible. Never blocks.

        The partitions of a topic that is read anew are absent until it is served.
        """
        return self._progress.positions()

    def lag(self) -> dict[Partition, int]:
        """Return the offsets between position and the last known end (at most some seconds old). Never blocks.

        Control records of transactions and compacted holes count as offsets.
        """
        return self._progress.lag()

    def ages(self) -> dict[Partition, float]:
        """Return the seconds since each partition was last known to be applied to its end. Never blocks.

        At most some seconds while Kafka is reachable and nothing is behind. Partitions that never got there are absent.
        """
        measured_at = clock()
        return {part: max(0.0, measured_at - at) for part, (at, _) in self._progress.caught_up().items()}

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
        topic_tables = self._engine.generations.serving.get(topic)
        return topic_tables.topic_id if topic_tables is not None else None

    @property
    def load_seconds(self) -> float | None:
        """The seconds that ``start`` took; None before it has returned."""
        return self._engine.load_seconds

    @property
    def bad_records(self) -> int:
        """The number of bad records since ``start``, also of those that newer records have superseded."""
        return sum(table.quarantine.total for table in self._engine.generations.tables())

    def figures(self) -> dict[tuple[str, str], float]:
        """Return what the backend says of its size and work, by topic ("" for what topics share) and name."""
        figures = {("", name): figure for name, figure in self._engine.backend.figures().items()}
        for topic, topic_tables in self._engine.generations.by_topic().items():
            figures |= {(topic, name): figure for name, figure in topic_tables.storage.figures().items()}
        return figures

    def memory(self) -> dict[str, dict[str, int]]:
        """Return the bytes of memory that each directory takes for ``keys``, ``values`` and ``indexes``.

        Estimated within some percent from 2,000 entries, in a millisecond; what views of ``cache_decoded`` share is
        not in it. Empty for a directory on disk.
        """
        return {table.directory.name: table.directory_storage.memory() for table in self._engine.generations.tables()}

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change of positions or state; return a function that ends this.

        The thread that made the change calls it, so it must be quick. Its first error is logged.
        """
        self._progress.subscribe(listener)
        return partial(self._progress.unsubscribe, listener)

    def quarantine(self) -> list[QuarantinedRecord]:
        """Return the outstanding bad records: those that no newer record of the same key has superseded.

        The newest 1,000 of each directory (at most 64 MiB) are kept whole; `outstanding` counts them all.
        """
        return [bad for table in self._engine.generations.tables() for bad in table.quarantine]

    def outstanding(self) -> dict[str, int]:
        """Return how many bad records are outstanding, by directory."""
        return {table.directory.name: table.quarantine.outstanding for table in self._engine.generations.tables()}

    def contested(self) -> list[Contested]:
        """Return keys that were met in two partitions of their topic; the first 1,000 of each directory.

        Happens when a topic got more partitions, or is written with two partitioners. The newer record counts.
        """
        return [
            contested
            for table in self._engine.generations.tables()
            for contested in list(table.conflicts.contested_keys.values())
        ]

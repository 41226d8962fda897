"""The parts of a store: cluster, backend, tables, threads, and the operations that need several of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import RLock
from typing import Any

from compactory.clock import clock
from compactory.directory import Directory
from compactory.errors import CompactoryError, NotReady, StartTimeout
from compactory.ingest.discovery import Discovery
from compactory.ingest.generations import Generations
from compactory.ingest.load_monitor import LoadMonitor, explain_timeout
from compactory.ingest.progress import Progress
from compactory.ingest.reader import Reader
from compactory.ingest.topic_tables import TopicTables
from compactory.kafka.client import Kafka
from compactory.options import StoreOptions
from compactory.read.served import Served
from compactory.read.snapshot import DirectorySnapshot
from compactory.read.store_snapshot import StoreSnapshot, frozen_view
from compactory.read.view import View
from compactory.records import QuarantinedRecord, StoreState
from compactory.storage.backend import Backend
from compactory.table.table import Table
from compactory.table.unusable import unusable_reason

__all__ = ["Engine"]

log = logging.getLogger("compactory.store")


class Engine:
    """The parts of a `GlobalStore`. It does not refer to the store, which may be dropped without close.

    ``served`` has what views read, by directory.
    """

    def __init__(
        self, kafka: Kafka, directories: Iterable[Directory[Any]], backend: Backend, options: StoreOptions
    ) -> None:
        self.kafka = kafka
        self.backend = backend
        self.options = options
        self.directories = {directory.name: directory for directory in directories}
        by_topic: dict[str, list[Directory[Any]]] = {}
        for directory in self.directories.values():
            by_topic.setdefault(directory.topic, []).append(directory)
        self.progress = progress = Progress(by_topic)
        self.served = {
            name: Served(
                progress.refusal, partial(progress.age, directory.topic), partial(self.record_changes, directory)
            )
            for name, directory in self.directories.items()
        }
        self.generations = Generations(by_topic, backend, options, self.served)
        self.discovery = Discovery(kafka, self.generations, progress, options.missing_topic)
        self.reader = Reader(kafka, options, self.generations, progress, self.discovery)
        self.load_seconds: float | None = None
        self._ends_watches = False  # True once the end of the store ends watches
        self._closing = RLock()  # guards close against what load opens; a signal's handler may close during a close
        self._is_open = False  # True while the backend is in use: a store that was never loaded leaves it alone

    def load(self, began: float) -> None:
        """Read every topic to its high watermark; ``began`` is when that began, by `clock`. Raises as start does."""
        options = self.options
        with self._closing:
            self.progress.raise_end()
            self._is_open = True
            self.generations.open()
        if options.start_stale and self._serve_checkpoints():
            self.discovery.wake()  # its thread notices if Kafka is there; the start does not wait for that
        else:
            timeout = min(options.stall_timeout, options.start_timeout or options.stall_timeout)
            self.discovery.open(max(0.1, timeout - (clock() - began)))
        self.reader.start()
        self.discovery.start()
        monitor = LoadMonitor(options.on_progress)
        try:
            self.progress.wait_loaded(options.stall_timeout, options.start_timeout, began, monitor.report)
        except StartTimeout as error:
            last_error = self.reader.last_error
            raise explain_timeout(error, self.blocking(), self.kafka, last_error, options.start_timeout) from None

    def give_up(self) -> None:
        """End a start that failed, with all that it has opened: another store may use the backend's folder."""
        with self._closing:
            self.generations.close_views()
            self._release()

    def close(self) -> None:
        """Stop reading, wake every waiter with StoreClosed, free the entries. Idempotent; complete on return."""
        with self._closing:
            if self.progress.move(StoreState.CLOSED):
                self.give_up()

    def _release(self) -> None:
        """End the threads and wait for them; release the cluster and, once, the backend."""
        self.kafka.interrupt()
        self.reader.stop()
        self.discovery.stop()
        self.kafka.close()
        if self._is_open:
            self._is_open = False
            self.generations.close()

    def orphan(self, cause: CompactoryError) -> None:
        """Answer nothing in a forked child: the threads are gone, so nobody keeps the data up to date."""
        self.progress.orphan(cause)
        self.generations.close_views()

    def unusable(self) -> dict[str, str]:
        """Return why none of a directory's records is usable, by directory."""
        tables = self.generations.tables()
        return {table.directory.name: reason for table in tables if (reason := unusable_reason(table)) is not None}

    def blocking(self) -> list[dict[str, Any]]:
        """Return what readiness waits for: topics, partitions, and directories none of whose records is usable."""
        unusable = [
            {"topic": self.directories[name].topic, "partition": None, "position": None, "target": None,
             "directory": name, "reason": reason} for name, reason in self.unusable().items()
        ]  # fmt: skip
        return self.progress.blocking() + ([] if self.progress.serves else unusable)

    def resolve(
        self, records: Iterable[QuarantinedRecord], resolve: Callable[[Table, QuarantinedRecord], bool], timeout: float
    ) -> list[QuarantinedRecord]:
        """Resolve bad records in the reader's thread; return those that are still bad."""

        def resolve_all() -> list[QuarantinedRecord]:
            # in the reader's thread, as a rebuild swaps the tables
            tables = {table.directory.name: table for table in self.generations.tables()}
            unresolved = [bad for bad in records if not resolve(tables[bad.directory], bad)]
            for topic, topic_tables in self.generations.serving.items():
                if topic_tables is not self.generations.reading[topic]:  # else the reader commits
                    topic_tables.commit_again()
            return unresolved

        return self.reader.run(resolve_all, timeout)

    def frozen(self, views: Mapping[str, View[Any]]) -> StoreSnapshot:
        """Return the views of all directories as they are now, between two batches of the reader."""
        with self.reader.between_batches:
            frozen = {name: frozen_view(view, self.served[name]) for name, view in views.items()}
            topic_ids = {topic: tables.topic_id for topic, tables in self.generations.serving.items()}
            return StoreSnapshot(frozen, self.progress.positions(), topic_ids)

    def snapshot(self, directory: Directory[Any], timeout: float) -> DirectorySnapshot:
        """Return a snapshot of a directory, with its positions; taken in the reader's thread, between two batches."""

        def take() -> DirectorySnapshot:
            topic_tables = self._current_tables(directory.topic)
            [table] = [table for table in topic_tables.tables if table.directory.name == directory.name]
            return DirectorySnapshot(
                directory=directory,
                topic_id=topic_tables.topic_id,
                positions=self.progress.checkpointed(directory.topic)[0],
                bad=table.quarantine.bad_topic_keys(),
                revision=table.revision,
                entries=table.snapshot(),
            )

        return self.reader.run(take, timeout)

    def _current_tables(self, topic: str) -> TopicTables:
        """Return the served tables of a topic if their positions are known. In the reader's thread. Raises NotReady."""
        served = self.generations.serving.get(topic)
        progress = self.progress.topics[topic]
        has_positions = progress.demand is None and bool(progress.positions)
        if served is None or served is not self.generations.reading[topic] or not has_positions:
            raise NotReady(f"topic {topic!r} is being read anew; served data has no known positions meanwhile")
        return served

    def record_changes(self, directory: Directory[Any], timeout: float) -> Table:
        """Return the served table of a directory. Its changes are recorded from now on at the latest."""

        def open_changes() -> Table:
            table = self.served[directory.name].live_table
            table.changes.start_recording()
            return table

        if not self._ends_watches:
            self._ends_watches = True
            self.progress.subscribe(self._end_watches)
            self._end_watches()  # the store may have failed before
        table = self.served[directory.name].live_table
        return table if table.changes.recording else self.reader.run(open_changes, timeout)

    def _end_watches(self) -> None:
        if self.progress.state in (StoreState.FAILED, StoreState.CLOSED):
            for table in self.generations.tables():
                table.changes.end()

    def _serve_checkpoints(self) -> bool:
        """Serve what the backend has, if it has all topics complete and under the same definitions."""
        reading = self.generations.reading
        missing = [topic for topic, tables in reading.items() if not tables.resumable]
        if missing:
            log.info("nothing complete is kept of %s: start_stale has to wait for Kafka", ", ".join(missing))
            return False
        for topic, tables in reading.items():
            checkpoint = tables.opened_checkpoint()
            assert checkpoint is not None
            tables.serve(checkpoint.topic_id, checkpoint.positions, partial(self.progress.note_damage, topic))
            self.progress.resume(topic, checkpoint, serve=True)
            self.generations.serve(tables)
        self.generations.open_views(self.progress)
        return True

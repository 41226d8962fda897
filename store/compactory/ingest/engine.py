"""The inside of a store: its two threads, the tables of each topic, and the tables that are served."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from threading import RLock
from typing import Any

from compactory.clock import clock
from compactory.directory import Directory
from compactory.errors import CompactoryError, NotReady, StartTimeout
from compactory.ingest.blocked_start import explained
from compactory.ingest.discovery import Discovery
from compactory.ingest.memory_guard import MemoryGuard
from compactory.ingest.progress import Progress
from compactory.ingest.reader import Reader
from compactory.ingest.topic_tables import TopicTables
from compactory.kafka.client import Kafka
from compactory.loading import Loading
from compactory.options import StoreOptions
from compactory.read.served import Served
from compactory.read.snapshot import DirectorySnapshot
from compactory.read.store_snapshot import StoreSnapshot, frozen_view
from compactory.read.view import View
from compactory.records import QuarantinedRecord, StoreState
from compactory.storage.backend import Backend, Cut
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.saving import stored
from compactory.table.table import Table
from compactory.table.unusable import unusable_reason

__all__ = ["Engine"]

log = logging.getLogger("compactory.store")

_SAY_EVERY = 5.0  # seconds between two log lines while loading


class Engine:
    """The parts of a `GlobalStore`, put together. It knows nothing of the store, which may be dropped without close.

    ``served`` is what views read, by directory; ``serving`` the topic tables that are behind it, by topic.
    """

    def __init__(
        self, kafka: Kafka, directories: Iterable[Directory[Any]], backend: Backend, options: StoreOptions
    ) -> None:
        given = tuple(directories)
        self.kafka = kafka
        self.backend = backend
        self.options = options
        self.directories = {each.name: each for each in given}
        by_topic: dict[str, list[Directory[Any]]] = {}
        for directory in given:
            by_topic.setdefault(directory.topic, []).append(directory)
        self.progress = progress = Progress(by_topic)
        self.served = {
            each.name: Served(progress.refusal, partial(progress.age, each.topic), partial(self.record_changes, each))
            for each in given
        }
        self.serving: dict[str, TopicTables] = {}
        tables_by_topic: dict[str, TopicTables] = {}
        self.discovery = Discovery(kafka, tables_by_topic, progress, options.missing_topic)
        self.reader = Reader(
            kafka, backend, by_topic, options, tables_by_topic, progress, self.discovery, self._swap, self._serve
        )
        self._watched = False  # whether changes of a directory were ever asked for
        self._closing = RLock()  # guards close against what load opens; a signal's handler may close during a close
        self.load_seconds: float | None = None
        self._opened = False  # whether the backend is: a store that never was leaves it alone

    def load(self, began: float) -> None:
        """Read every topic to its high watermark; ``began`` is when that began, by `clock`. Raises as start does."""
        options = self.options
        limits = [limit for limit in (options.stall_timeout, options.start_timeout) if limit is not None]
        with self._closing:
            self.progress.raise_end()
            self._opened = True
            tables_by_topic = self.reader.open()
        stale = options.start_stale and self._serve_stale(tables_by_topic)
        if stale:
            self.discovery.wake()  # its thread says whether Kafka is there; the start does not wait for that
        else:
            self.discovery.open(max(0.1, min(limits) - (clock() - began)))
        self.reader.start()
        self.discovery.start()
        try:
            teller = _ProgressReporter(options.on_progress, MemoryGuard(self.memory_bytes, options.max_bytes))
            self.progress.wait_loaded(options.stall_timeout, options.start_timeout, began, teller)
            teller.guard.check(self.progress.loading())
        except StartTimeout as error:
            last_error = self.reader.last_error
            raise explained(error, self.blocking(), self.kafka, last_error, options.start_timeout) from None

    def give_up(self) -> None:
        """End a start that failed, with all that it has opened: another store may take the backend's folder."""
        with self._closing:
            self._close_views()
            self._release()

    def close(self) -> None:
        """Stop reading, wake every waiter with StoreClosed, free the entries. Idempotent; complete on return."""
        with self._closing:
            if not self.progress.move(StoreState.CLOSED):
                return
            self._close_views()
            self._release()

    def _release(self) -> None:
        """End the threads and wait for them; let go of the cluster and, once, of the backend."""
        self.kafka.interrupt()
        self.reader.stop()
        self.discovery.stop()
        self.kafka.close()
        if not self._opened:
            return
        self._opened = False
        tables_by_topic = {
            id(topic_tables): topic_tables
            for topic_tables in (*self.serving.values(), *self.reader.tables_by_topic.values())
        }
        for topic_tables in tables_by_topic.values():
            topic_tables.storage.close()
        self.backend.close()

    def orphan(self, cause: CompactoryError) -> None:
        """In a forked child the threads are gone: answer nothing from data that nobody keeps up to date."""
        self.progress.orphan(cause)
        self._close_views()

    def tables_by_topic(self) -> dict[str, TopicTables]:
        """Return the topic tables of each topic that is served; of topics not served yet, those that are loading."""
        return {**self.reader.tables_by_topic, **self.serving}

    def tables(self) -> list[Table]:
        """Return the table of each directory of these topics."""
        return [table for topic_tables in self.tables_by_topic().values() for table in topic_tables.tables]

    def memory(self) -> dict[str, dict[str, int]]:
        """Return what each directory takes of this process' memory, by kind."""
        return {table.directory.name: table.directory_storage.memory() for table in self.tables()}

    def memory_bytes(self) -> int:
        """Return what all of them take."""
        return sum(sum(kinds.values()) for kinds in self.memory().values())

    def unusable(self) -> dict[str, str]:
        """Return why none of a directory's records is usable, by directory."""
        return {table.directory.name: why for table in self.tables() if (why := unusable_reason(table)) is not None}

    def blocking(self) -> list[dict[str, Any]]:
        """Return what readiness waits for: topics, partitions, and directories none of whose records is usable."""
        topics = {name: served.topic for name, served in self.directories.items()}
        unusable = [
            {"topic": topics[name], "partition": None, "position": None, "target": None, "directory": name,
             "reason": why} for name, why in self.unusable().items()
        ]  # fmt: skip
        return self.progress.blocking() + ([] if self.progress.serves else unusable)

    def resolve(
        self, records: Iterable[QuarantinedRecord], resolve: Callable[[Table, QuarantinedRecord], bool], timeout: float
    ) -> list[QuarantinedRecord]:
        """Resolve bad records in the reader's thread; return those where that did not help."""

        def resolved() -> list[QuarantinedRecord]:
            tables = {table.directory.name: table for table in self.tables()}  # only now: they may have been swapped
            left = [bad for bad in records if not resolve(tables[bad.directory], bad)]
            for topic, topic_tables in self.serving.items():
                if topic_tables is not self.reader.tables_by_topic[topic]:  # else the reader commits
                    topic_tables.commit_again()
            return left

        return self.reader.run(resolved, timeout)

    def frozen(self, views: Mapping[str, View[Any]]) -> StoreSnapshot:
        """Return the views of all directories as they are now, between two batches of the reader."""
        with self.reader.between_batches:
            frozen = {name: frozen_view(view, self.served[name]) for name, view in views.items()}
            topic_ids = {topic: tables.topic_id for topic, tables in self.serving.items()}
            return StoreSnapshot(frozen, self.progress.positions(), topic_ids)

    def snapshot(self, directory: Directory[Any], timeout: float) -> DirectorySnapshot:
        """Return what a directory holds at the positions of now; taken in the reader's thread, between two batches."""
        topic = directory.topic

        def taken() -> DirectorySnapshot:
            topic_tables = self._known(topic)
            [table] = [table for table in topic_tables.tables if table.directory.name == directory.name]
            return DirectorySnapshot(
                directory=directory,
                topic_id=topic_tables.topic_id,
                positions=self.progress.checkpointed(topic)[0],
                bad=table.quarantine.bad_topic_keys(),
                revision=table.revision,
                entries=table.snapshot(),
            )

        return self.reader.run(taken, timeout)

    def save(self, topic: str, address: str, timeout: float) -> str:
        """Write what is held of a topic to a path or URL; return which."""

        def cut() -> tuple[Checkpoint, list[Cut]]:
            topic_tables = self._known(topic)
            self.reader.commit(topic)
            assert topic_tables.committed is not None
            return topic_tables.committed, topic_tables.cuts()

        return stored(address, topic, *self.reader.run(cut, timeout))

    def _known(self, topic: str) -> TopicTables:
        """Return the tables of a topic at the positions of now. In the reader's thread."""
        topic_tables = self.serving.get(topic)
        reading = self.progress.topics[topic]
        moving = reading.demand is not None or not reading.positions
        if topic_tables is None or topic_tables is not self.reader.tables_by_topic[topic] or moving:
            raise NotReady(f"topic {topic!r} is being read anew; served data has no known positions meanwhile")
        return topic_tables

    def record_changes(self, directory: Directory[Any], timeout: float) -> Table:
        """Return the table of a directory that is served; its changes are recorded from now on at the latest."""

        def opened() -> Table:
            table = self.served[directory.name].live_table
            table.changes.start_recording()
            return table

        if not self._watched:
            self._watched = True
            self.progress.subscribe(self._end_changes)
            self._end_changes()  # it may have failed before
        table = self.served[directory.name].live_table
        return table if table.changes.recording else self.reader.run(opened, timeout)

    def _end_changes(self) -> None:
        if self.progress.state in (StoreState.FAILED, StoreState.CLOSED):
            for table in self.tables():
                table.changes.end()

    def _serve_stale(self, tables_by_topic: Collection[TopicTables]) -> bool:
        """Serve what the backend holds where it holds everything, complete and under the same definitions."""
        missing = [topic_tables.topic for topic_tables in tables_by_topic if not topic_tables.resumable]
        if missing:
            log.info("nothing complete is kept of %s: start_stale has to wait for Kafka", ", ".join(missing))
            return False
        for topic_tables in tables_by_topic:
            checkpoint = topic_tables.kept()
            assert checkpoint is not None
            damaged = partial(self.reader.demand_rebuild, topic_tables.topic)
            topic_tables.serve(checkpoint.topic_id, checkpoint.positions, damaged)
            self.progress.keep(topic_tables.topic, checkpoint)
            self._swap(topic_tables)
        self._serve()
        return True

    def _swap(self, topic_tables: TopicTables) -> None:
        """Let the directories of a topic be answered from these tables; watches of the former ones end."""
        former = self.serving.get(topic_tables.topic)
        self.serving[topic_tables.topic] = topic_tables
        for table in topic_tables.tables:
            self.served[table.directory.name].swap(table)
        for old, new in zip(former.tables if former else (), topic_tables.tables, strict=False):
            if old is not new:
                if old.changes.recording:
                    new.changes.start_recording()
                old.changes.end()

    def _serve(self) -> None:
        """Open the views, then say so."""
        for each in self.served.values():
            each.open = each.open or self.progress.state is StoreState.LOADING
        if not self.progress.serve() and self.progress.state is StoreState.CLOSED:  # by another thread, in between
            self._close_views()

    def _close_views(self) -> None:
        for served in self.served.values():
            served.open = False


class _ProgressReporter:
    """Reports the loading: to the user's callback each time, to the log every five seconds."""

    def __init__(self, on_progress: Callable[[Loading], None] | None, guard: MemoryGuard) -> None:
        self.guard = guard
        self._on_progress = on_progress
        self._said_at = clock()

    def __call__(self, loading: Loading) -> None:
        self.guard.check(loading)
        if clock() - self._said_at >= _SAY_EVERY:
            self._said_at = clock()
            log.info("loading: %s", loading)
        if self._on_progress is not None:
            try:
                self._on_progress(loading)
            except Exception:
                log.exception("on_progress raised; it is not called again")
                self._on_progress = None

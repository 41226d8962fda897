"""The one thread that reads the topics: consumes, applies, then moves positions on; reads a topic anew when told to."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any, TypeVar

from compactory.clock import boot, clock
from compactory.directory import Directory
from compactory.errors import BackendCorrupt, CompactoryError, ConfigError
from compactory.ingest.commands import Commands
from compactory.ingest.discovery import Discovery
from compactory.ingest.gc_tuning import give_back
from compactory.ingest.progress import Progress
from compactory.ingest.topic_progress import Phase
from compactory.ingest.topic_tables import TopicTables
from compactory.kafka.client import Consumer, Kafka, KafkaError, Message, TopicPartition, event_kind, kafka_errors
from compactory.options import StoreOptions
from compactory.records import Partition, Rebuild, RebuildCause, StoreState
from compactory.stoppable_thread import StoppableThread
from compactory.storage.backend import Backend, TopicStorage
from compactory.storage.checkpoint import CaughtUp, Checkpoint
from compactory.table.batch import RecordRun, split_batch
from compactory.table.unusable import missing_field_warnings, unusable_reason
from compactory.tracing import passed

__all__ = ["Reader"]

log = logging.getLogger("compactory.store")

R = TypeVar("R")
_WAIT = 0.1  # seconds that a consume call waits for a first message; bounds how long stop() takes
_FLUSH_EVERY = 5.0  # seconds between two flushes of what a backend keeps on disk
_TIDY_EVERY = 60.0  # seconds between two rounds of forgetting old tombstones
_KEEP_TOMBSTONES = 3600.0  # seconds of record time that a tombstone of a topic with several partitions is remembered
_REST = 1.0  # seconds at least between two rebuilds of one topic
_BATCH = 2000  # messages per call: measured fastest while loading, as the batch then stays in the processor's cache


class Reader:
    """Reads every partition that `Progress` knows into the topic tables of its topic.

    It owns the write side of the topic tables, and the consumers. It loads tables at the start and for a
    rebuild. Lookups use the former tables until the new ones are complete. It loads with a consumer of large
    buffers, then goes on at the exact next offsets with one of small buffers. Its death is recorded in `Progress`.

    ``on_served`` is called by the thread with the tables of each topic that is complete, ``on_ready`` once when all are
    complete for the first time.
    """

    def __init__(
        self,
        kafka: Kafka,
        backend: Backend,
        directories: Mapping[str, Sequence[Directory[Any]]],
        options: StoreOptions,
        tables_by_topic: dict[str, TopicTables],
        progress: Progress,
        discovery: Discovery,
        on_served: Callable[[TopicTables], None],
        on_ready: Callable[[], None],
    ) -> None:
        self.tables_by_topic = tables_by_topic  # topic -> what it is read into
        self.last_error: str | None = None  # of the client as a whole: why nothing may be coming
        self.polled_at = clock()  # when the thread last asked the client for records
        self.applying_since: float | None = None  # since when it is at a batch
        self.between_batches = RLock()  # guards that tables, positions and what is served belong together
        self._kafka = kafka
        self._backend = backend
        self._directories = directories
        self._options = options
        self._progress = progress
        self._discovery = discovery
        self._on_served = on_served
        self._on_ready = on_ready
        self._serves_unusable = options.unusable_directory == "serve"
        self._commands = Commands(progress.raise_end)
        self._thread = StoppableThread("reader")
        self._stopping = self._thread.stopping
        self._assigned: set[Partition] = set()
        self._noted: set[int] = set()  # codes of errors that were logged since the last records came
        self._tidied = self._flushed = time.monotonic()

    def open(self) -> list[TopicTables]:
        """Open what the backend holds of each topic; before `start`, by the same process."""
        for topic in self._progress.topics:
            self.tables_by_topic[topic] = self._opened(topic)
        return list(self.tables_by_topic.values())

    def _opened(self, topic: str) -> TopicTables:
        storage = self._backend.open(topic)
        try:
            return self._make_tables(topic, storage)
        except BackendCorrupt as damage:
            log.warning("topic %s: what was kept of it is not used: %s", topic, damage)
        storage.close()  # not before the error is gone, whose frames hold iterators: they would keep it open
        return self._make_tables(topic, self._backend.open(topic))  # which sets aside what is marked as damaged now

    def _make_tables(self, topic: str, storage: TopicStorage) -> TopicTables:
        return TopicTables(topic, self._directories[topic], storage, self._options)

    @property
    def running(self) -> bool:
        """Whether the thread was started."""
        return self._thread.running

    def start(self) -> None:
        """Start the thread."""
        for topic in self._progress.topics.values():
            topic.began = clock()
        self._thread.start(self._run)

    def run(self, command: Callable[[], R], timeout: float) -> R:
        """Have the thread, which alone may write, call ``command`` between two batches; return its answer.

        Raises as `Commands.run` does.
        """
        return self._commands.run(command, timeout)

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, before start and by the thread itself."""
        self._thread.stop()

    def _run(self) -> None:
        try:
            with kafka_errors("read", self._kafka.bootstrap):
                while not self._stopping.is_set():
                    self._begin_rebuilds()
                    self._read()
            self._flush()
        except BaseException as error:  # noqa: BLE001 (even a SystemExit of a user's callable must wake waiters)
            if self._progress.move(StoreState.FAILED, error):
                # where it happened, not the text of foreign errors: that may quote a record's value
                what = str(error) if isinstance(error, CompactoryError) else type(error).__name__
                where = "".join(traceback.format_tb(error.__traceback__))
                log.critical("the reader died, nothing is kept up to date any more: %s\n%s", what, where)

    def _read(self) -> None:
        """Read with one consumer, until another kind of consumer is needed or a rebuild is demanded.

        A rebuild takes a new consumer: to a topic that was created again the client would go on with what it knows of
        the former one (librdkafka 2.16).
        """
        loads = bool(self._loading())
        consumer = self._kafka.consumer("load" if loads else "follow", self._note)
        self._assigned.clear()
        try:
            self._assign(consumer)
            if not loads:
                give_back()  # what the loading consumer's prefetch took
            while not self._stopping.is_set() and not self._progress.demanded():
                self._assign(consumer)
                self._step(consumer)
                self._run_commands()
                self._tidy()
                if loads and self._serve_complete():
                    return
        finally:
            consumer.close()

    def _begin_rebuilds(self) -> None:
        for topic in self._progress.demanded():
            reading = self._progress.topics[topic]
            if reading.phase is not Phase.FOLLOWING:
                self._stopping.wait(max(0.0, reading.began + _REST - clock()))
            fresh = self._make_tables(topic, self._backend.fresh(topic))
            former, self.tables_by_topic[topic] = self.tables_by_topic[topic], fresh
            if not former.served:
                former.storage.close()
            rebuild = self._progress.restart(topic)
            log.warning("topic %s is read anew (%s): %s", topic, rebuild.cause.value, rebuild.detail)
            self._discovery.wake()

    def _serve_complete(self) -> bool:
        """Serve what is loaded to its target; say whether nothing is left to load."""
        done = [topic for topic in self._loading() if self._progress.is_complete(topic) and not self._holds(topic)]
        if done and self._discovery.still_the_same(done):
            for topic in done:
                self._serve(topic)
        if self._loading():
            return False
        self._on_ready()
        return True

    def _loading(self) -> list[str]:
        """Return the topics that are not read to their end yet."""
        return [name for name, topic in self._progress.topics.items() if topic.phase is not Phase.FOLLOWING]

    def _holds(self, topic: str) -> bool:
        """Say whether none of the records of one of the topic's directories is usable; the log says so once."""
        tables = self.tables_by_topic[topic]
        unusable = [table for table in tables.tables if table.unusable]
        for table in unusable if not tables.logged_unusable else ():
            why = unusable_reason(table) or "it was not, just now"
            then = "it is served all the same" if self._serves_unusable else "not served until one is"
            log.error("directory %s: %s; %s", table.directory.name, why, then)
            if not self._serves_unusable:
                self._progress.hold(topic, why)
        tables.logged_unusable = tables.logged_unusable or bool(unusable)
        return bool(unusable) and not self._serves_unusable

    def _serve(self, topic: str) -> None:
        """Serve what is read of a topic from now on, unless something turns up that demands to read it anew."""
        reading, tables = self._progress.topics[topic], self.tables_by_topic[topic]
        took, kept = clock() - reading.began, self._discovery.retention(topic)
        if (gap := self._progress.gap(topic, kept)) is not None:
            self._progress.demand(topic, gap)
            return
        if took > kept:
            log.warning(
                "topic %s took %.0f s to read, tombstones are kept for %g s (delete.retention.ms): deletions in between"
                " may have been missed; raise it", topic, took, kept,
            )  # fmt: skip
        with self._watched(topic):
            if tables.resumable:
                tables.retry()  # what was bad under the program that ran before may be good under this one
            self._commit(topic, complete=True)
            tables.storage.flush()
        if reading.demand is not None:
            return
        for warning in [text for table in tables.tables for text in missing_field_warnings(table)]:
            log.warning("topic %s: %s", topic, warning)
        positions = self._progress.checkpointed(topic)[0]
        tables.serve(reading.identity, positions, partial(self.demand_rebuild, topic))
        self._backend.promote(topic, tables.storage)
        with self.between_batches:
            self._on_served(tables)
            self._progress.finish(topic)
        if reading.rebuild is not None:
            passed("rebuild", took, topic=topic, cause=reading.rebuild.cause.value)

    def _assign(self, consumer: Consumer) -> None:
        """Have the consumer read the partitions that became known, from their positions on."""
        if sum(len(topic.positions) for topic in self._progress.topics.values()) == len(self._assigned):
            return
        new = {part: offset for part, offset in self._progress.reached().items() if part not in self._assigned}
        if not new:
            return
        self._assigned.update(new)
        for topic, topic_tables in self.tables_by_topic.items():
            topic_tables.spread_over(sum(part.topic == topic for part in self._assigned))
        consumer.incremental_assign([self._place(part, offset) for part, offset in new.items()])

    def _place(self, partition: Partition, position: int) -> TopicPartition:
        """Where to go on: behind the last record, whose leader epoch the broker knows unless the log was cut off.

        Between that and the position are control records and aborted data, which may be of a later epoch.
        """
        end, epoch = self.tables_by_topic[partition.topic].last_record_epochs.get(partition.partition, (position, -1))
        return TopicPartition(*partition, min(end, position), "", epoch)

    def _step(self, consumer: Consumer) -> None:
        """Take a batch from Kafka to the lookups: consume, split, apply, commit, publish the positions."""
        self.polled_at = clock()
        messages = consumer.consume(1, _WAIT)  # waits for one only: for more it would wait until it has them all
        if not messages:
            return
        messages += consumer.consume(_BATCH, 0)
        self.applying_since = self.polled_at
        with self.between_batches:
            self._take(messages)
        self.applying_since = None

    def _take(self, messages: list[Message]) -> None:
        runs, events = split_batch(messages, self._assigned)
        if runs:
            self._noted.clear()
        for run in runs:
            self._apply(run)
        moved = [(run.partition, run.next_offset) for run in runs]
        for topic in {partition.topic for partition, _ in moved}:
            self._commit(topic, dict(moved))
        moved += [end for event in events if (end := self._handle(event)) is not None]
        self._progress.advance(moved)
        for topic in {partition.topic for partition, _ in moved}:  # together, as all of it was applied
            positions = {partition.partition: end for partition, end in moved if partition.topic == topic}
            self.tables_by_topic[topic].publish_changes(positions)

    def _apply(self, run: RecordRun) -> None:
        """Apply a run to the tables of its topic."""
        topic = run.partition.topic
        loading = self._progress.topics[topic].phase is not Phase.FOLLOWING
        with self._watched(topic):
            self.tables_by_topic[topic].apply(run, loading=loading)

    def commit(self, topic: str) -> None:
        """Have the topic storage know how far it goes, also where it keeps nothing. For the thread."""
        self._commit(topic, always=True)

    def _commit(
        self,
        topic: str,
        moved: Mapping[Partition, int] | None = None,
        *,
        complete: bool = False,
        always: bool = False,
    ) -> None:
        """Make what was applied visible, together with how far it goes: the positions, and ``moved`` beyond them."""
        tables, reading = self.tables_by_topic[topic], self._progress.topics[topic]
        if not (tables.storage.persistent or always):
            return
        with self._watched(topic):
            if not reading.positions:  # nothing was read, it may not even be this topic's: what was kept stays true
                tables.commit_again()
                return
            positions, marks = self._progress.checkpointed(topic)
            positions |= {part.partition: end for part, end in (moved or {}).items() if part.topic == topic}
            since_epoch = time.time() - clock()
            tables.commit(
                Checkpoint(
                    topic_id=reading.identity,
                    cluster_id=self._discovery.cluster_id,
                    definition=tables.definition,
                    positions=positions,
                    last_record_epochs=dict(tables.last_record_epochs),
                    caught_up={
                        number: CaughtUp(at=at + since_epoch, end=end, clock=at, boot=boot())
                        for number, (at, end) in marks.items()
                    },
                    complete=complete or reading.phase is Phase.FOLLOWING or tables.resumable,
                )
            )

    @contextmanager
    def _watched(self, topic: str) -> Iterator[None]:
        """Demand a rebuild of a topic whose topic storage turns out to be damaged."""
        try:
            yield
        except BackendCorrupt as damage:
            self.demand_rebuild(topic, damage)

    def demand_rebuild(self, topic: str, damage: BackendCorrupt) -> None:
        """Have a topic read anew whose storage is damaged. For any thread."""
        self._progress.demand(topic, Rebuild(RebuildCause.CORRUPT, str(damage)))

    def _run_commands(self) -> None:
        for command in self._commands.taken():
            with self.between_batches:
                command.call()
                for topic, topic_tables in self.tables_by_topic.items():
                    self._commit(topic)
                    topic_tables.publish_changes({})
            command.settle()  # only now can the caller see what it has done

    def _tidy(self) -> None:
        now = time.monotonic()
        if now - self._flushed >= _FLUSH_EVERY:
            self._flush()
        if now - self._tidied < _TIDY_EVERY:
            return
        self._tidied = now
        for topic, topic_tables in self.tables_by_topic.items():
            behind = self._progress.age(topic)
            if self._progress.topics[topic].phase is not Phase.FOLLOWING or math.isinf(behind):
                continue  # an older record of the same key may still come out of another partition
            with self._watched(topic):
                for table in topic_tables.tables:
                    table.conflicts.forget_tombstones(int((time.time() - behind - _KEEP_TOMBSTONES) * 1000))

    def _flush(self) -> None:
        """Bring to disk what was applied, with positions that control records have moved since."""
        self._flushed = time.monotonic()
        for topic, topic_tables in self.tables_by_topic.items():
            self._commit(topic)
            with self._watched(topic):
                topic_tables.flush()

    def _handle(self, event: Message) -> tuple[Partition, int] | None:
        """Return the position that an end-of-partition event proves; demand a rebuild for a lost one."""
        error = event.error()
        assert error is not None
        kind = event_kind(error)
        partition = Partition(str(event.topic()), int(event.partition() or 0))
        if kind == "end":
            # read_committed stops at the last stable offset: control records and aborted data before it are passed
            return partition, int(event.offset() or 0)
        if kind in ("lost", "cut"):
            cause = RebuildCause.TRUNCATED if kind == "cut" else RebuildCause.LOST
            detail = f"the position in partition {partition.partition} is not in the log: {error.str()}"
            self._progress.demand(partition.topic, Rebuild(cause, detail))
        elif kind == "refused":
            told = f"reading {partition.topic!r} was refused: {error.str()}; check the topic's ACLs"
            if self._progress.state is StoreState.LOADING:
                raise ConfigError(told)
            log.error("%s; lookups go on", told)
        else:
            self._note(error)
        return None

    def _note(self, error: KafkaError) -> None:
        self.last_error = error.str()
        if error.code() not in self._noted:  # texts differ by brokers and milliseconds
            self._noted.add(error.code())
            log.info("Kafka client: %s", self.last_error)

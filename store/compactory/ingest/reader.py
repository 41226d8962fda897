"""The reader's thread: it consumes the topics, applies their records, then advances positions; it rebuilds topics."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import TypeVar

from compactory.clock import clock
from compactory.errors import BackendCorrupt, CompactoryError, ConfigError
from compactory.ingest.commands import CommandQueue
from compactory.ingest.discovery import Discovery
from compactory.ingest.gc_tuning import give_back
from compactory.ingest.generations import Generations
from compactory.ingest.progress import Progress
from compactory.ingest.topic_progress import Phase
from compactory.ingest.topic_tables import TopicTables
from compactory.kafka.client import Consumer, Kafka, KafkaError, Message, TopicPartition, event_kind, kafka_errors
from compactory.options import StoreOptions
from compactory.records import Partition, Rebuild, RebuildCause, StoreState
from compactory.table.batch import split_batch
from compactory.table.unusable import missing_field_warnings, unusable_reason
from compactory.threads import StoppableThread

__all__ = ["Reader"]

log = logging.getLogger("compactory.store")

R = TypeVar("R")
_POLL_TIMEOUT = 0.1  # seconds that a consume call waits for a first message; bounds how long stop() takes
_FLUSH_EVERY = 5.0  # seconds between two flushes of a backend on disk
_TIDY_EVERY = 60.0  # seconds between two rounds of forgetting old tombstones
_KEEP_TOMBSTONES = 3600.0  # seconds of record time that a tombstone of a topic with several partitions is remembered
_REBUILD_INTERVAL = 1.0  # seconds at least between two rebuilds of one topic
_BATCH = 2000  # messages per call: measured fastest while loading, as the batch then stays in the processor's cache


class Reader:
    """Reads every partition that `Progress` has into the topic tables of `Generations.reading`.

    Its thread alone writes these tables and uses the consumers. Topics are loaded at the start and for a rebuild;
    meanwhile lookups use the former tables. A consumer of large buffers loads, then one of small buffers continues at
    the next offsets. An error that ends the thread is recorded in `Progress`.
    """

    def __init__(
        self, kafka: Kafka, options: StoreOptions, generations: Generations, progress: Progress, discovery: Discovery
    ) -> None:
        self.last_error: str | None = None  # of the client as a whole: why it may receive nothing
        self.polled_at = clock()  # when the thread last asked the client for records
        self.applying_since: float | None = None  # since when it has been applying a batch
        self.between_batches = RLock()  # held while tables, positions and what is served change together
        self._kafka = kafka
        self._generations = generations
        self._progress = progress
        self._discovery = discovery
        self._serves_unusable = options.unusable_directory == "serve"
        self._commands = CommandQueue(progress.raise_end)
        self._thread = StoppableThread("reader")
        self._stopping = self._thread.stopping
        self._assigned: set[Partition] = set()
        self._logged_errors: set[int] = set()  # codes of errors that were logged since the last records came
        self._tidied = self._flushed = time.monotonic()

    @property
    def running(self) -> bool:
        """Return True if the thread was started."""
        return self._thread.running

    def start(self) -> None:
        """Start the thread."""
        for topic in self._progress.topics.values():
            topic.began = clock()
        self._thread.start(self._run)

    def run(self, command: Callable[[], R], timeout: float) -> R:
        """Call ``command`` in the thread, which alone may write, between two batches; return the result.

        Raises as `CommandQueue.run` does.
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
                text = str(error) if isinstance(error, CompactoryError) else type(error).__name__
                trace = "".join(traceback.format_tb(error.__traceback__))
                log.critical("the reader died, nothing is kept up to date any more: %s\n%s", text, trace)

    def _read(self) -> None:
        """Read with one consumer, until another kind of consumer is needed or a rebuild is demanded.

        A rebuild needs a new consumer: if a topic was created again, the client would use what it knows of the former
        topic (librdkafka 2.16).
        """
        is_loading = bool(self._loading_topics())
        consumer = self._kafka.consumer("load" if is_loading else "follow", self._note_error)
        self._assigned.clear()
        try:
            self._assign(consumer)
            if not is_loading:
                give_back()  # the memory of the loading consumer's prefetch
            while not self._stopping.is_set() and not self._progress.demanded():
                self._assign(consumer)
                self._step(consumer)
                self._run_commands()
                self._tidy()
                if is_loading and self._serve_complete():
                    return
        finally:
            consumer.close()

    def _begin_rebuilds(self) -> None:
        for topic in self._progress.demanded():
            former = self._progress.topics[topic]
            if former.phase is not Phase.FOLLOWING:
                self._stopping.wait(max(0.0, former.began + _REBUILD_INTERVAL - clock()))
            self._generations.begin(topic)
            rebuild = self._progress.begin_rebuild(topic)
            log.warning("topic %s is read anew (%s): %s", topic, rebuild.cause.value, rebuild.detail)
            self._discovery.wake()

    def _serve_complete(self) -> bool:
        """Serve the topics that are loaded to their targets. Return True once no topic is loading."""
        complete = [
            topic
            for topic in self._loading_topics()
            if self._progress.is_complete(topic) and not self._hold_unusable(self._generations.reading[topic])
        ]
        if complete and self._discovery.still_the_same(complete):
            for topic in complete:
                self._serve(topic)
        if self._loading_topics():
            return False
        self._generations.open_views(self._progress)
        return True

    def _loading_topics(self) -> list[str]:
        """Return the topics that are not read to their end yet."""
        return [name for name, topic in self._progress.topics.items() if topic.phase is not Phase.FOLLOWING]

    def _hold_unusable(self, tables: TopicTables) -> bool:
        """Hold a topic back if no record of one of its directories is usable. Return True if it is held.

        The log says so once.
        """
        unusable = [table for table in tables.tables if table.has_only_bad_records]
        if unusable and not tables.has_logged_unusable:
            tables.has_logged_unusable = True
            consequence = "it is served all the same" if self._serves_unusable else "not served until one is"
            for table in unusable:
                reason = unusable_reason(table) or "it was unusable a moment ago"
                log.error("directory %s: %s; %s", table.directory.name, reason, consequence)
                if not self._serves_unusable:
                    self._progress.hold(tables.topic, reason)
        return bool(unusable) and not self._serves_unusable

    def _serve(self, topic: str) -> None:
        """Serve the generation that is read of a topic from now on, unless it turns out that a rebuild is needed."""
        reading, tables = self._progress.topics[topic], self._generations.reading[topic]
        seconds, retention = clock() - reading.began, self._discovery.retention(topic)
        missed = self._progress.missed_tombstones(topic, retention)
        if missed is not None:
            self._progress.demand(topic, missed)
            return
        if seconds > retention:
            log.warning(
                "topic %s took %.0f s to read, tombstones are kept for %g s (delete.retention.ms): deletions in between"
                " may have been missed; raise it", topic, seconds, retention,
            )  # fmt: skip
        with self._noting_damage(topic):
            if tables.resumable:
                tables.retry()  # what was bad under the program that ran before may be good under this one
            self._commit(tables, complete=True)
            tables.storage.flush()
        if reading.demand is not None:
            return
        for table in tables.tables:
            for warning in missing_field_warnings(table):
                log.warning("topic %s: %s", topic, warning)
        positions = self._progress.checkpointed(topic)[0]
        tables.serve(reading.topic_id, positions, partial(self._progress.note_damage, topic))
        self._generations.promote(tables)
        with self.between_batches:
            self._generations.serve(tables)
            self._progress.finish(topic)

    def _assign(self, consumer: Consumer) -> None:
        """Assign the consumer the partitions that became known, at their positions."""
        if sum(len(topic.positions) for topic in self._progress.topics.values()) == len(self._assigned):
            return
        positions = self._progress.reading_positions()
        added = {partition: offset for partition, offset in positions.items() if partition not in self._assigned}
        if not added:
            return
        self._assigned.update(added)
        for topic, tables in self._generations.reading.items():
            tables.spread_over(sum(partition.topic == topic for partition in self._assigned))
        consumer.incremental_assign([self._resume_point(part, offset) for part, offset in added.items()])

    def _resume_point(self, partition: Partition, position: int) -> TopicPartition:
        """Return the offset after the last record. The broker knows its leader epoch, unless the log was cut off.

        Between that offset and the position are control records and aborted data, which may be of a later epoch.
        """
        epochs = self._generations.reading[partition.topic].last_record_epochs
        end, epoch = epochs.get(partition.partition, (position, -1))
        return TopicPartition(*partition, min(end, position), "", epoch)

    def _step(self, consumer: Consumer) -> None:
        """Move a batch from Kafka to the lookups: consume, split, apply, commit, publish the positions."""
        self.polled_at = clock()
        messages = consumer.consume(1, _POLL_TIMEOUT)  # waits for one only: for more it would wait for all of them
        if not messages:
            return
        messages += consumer.consume(_BATCH, 0)
        self.applying_since = self.polled_at
        with self.between_batches:
            self._apply_batch(messages)
        self.applying_since = None

    def _apply_batch(self, messages: list[Message]) -> None:
        runs, events = split_batch(messages, self._assigned)
        if runs:
            self._logged_errors.clear()
        positions = {run.partition: run.next_offset for run in runs}
        for topic in {partition.topic for partition in positions}:
            tables = self._generations.reading[topic]
            is_loading = self._progress.topics[topic].phase is not Phase.FOLLOWING
            with self._noting_damage(topic):
                for run in runs:
                    if run.partition.topic == topic:
                        tables.apply(run, loading=is_loading)
                self._commit(tables, positions)
        for event in events:
            end = self._handle(event)
            if end is not None:
                positions[end[0]] = max(end[1], positions.get(end[0], 0))
        self._progress.advance(positions.items())
        by_topic: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for (topic, number), position in positions.items():
            by_topic[topic][number] = position
        for topic, topic_positions in by_topic.items():  # together, as all of it was applied
            self._generations.reading[topic].publish_changes(topic_positions)

    def commit(self, topic: str) -> None:
        """Commit with a new checkpoint, also if the backend keeps nothing. For commands, in the reader's thread."""
        self._commit(self._generations.reading[topic], always=True)

    def _commit(
        self,
        tables: TopicTables,
        applied: Mapping[Partition, int] | None = None,
        *,
        complete: bool = False,
        always: bool = False,
    ) -> None:
        """Make the applied records visible, with a checkpoint: the positions, and those of ``applied`` after them."""
        topic, reading = tables.topic, self._progress.topics[tables.topic]
        if not (tables.storage.persistent or always):
            return
        with self._noting_damage(topic):
            if not reading.positions:  # nothing was read, perhaps not even from this topic: the checkpoint stays true
                tables.commit_again()
                return
            positions, marks = self._progress.checkpointed(topic)
            positions |= {part.partition: offset for part, offset in (applied or {}).items() if part.topic == topic}
            is_complete = complete or reading.phase is Phase.FOLLOWING
            tables.commit(reading.topic_id, self._discovery.cluster_id, positions, marks, complete=is_complete)

    @contextmanager
    def _noting_damage(self, topic: str) -> Iterator[None]:
        """Demand a rebuild of the topic if the block meets damaged storage."""
        try:
            yield
        except BackendCorrupt as damage:
            self._progress.note_damage(topic, damage)

    def _run_commands(self) -> None:
        for command in self._commands.take():
            with self.between_batches:
                answer = command.call()
                for tables in self._generations.reading.values():
                    self._commit(tables)
                    tables.publish_changes({})
            answer()  # the caller can see the effects only now

    def _tidy(self) -> None:
        if time.monotonic() - self._flushed >= _FLUSH_EVERY:
            self._flush()
        if time.monotonic() - self._tidied < _TIDY_EVERY:
            return
        self._tidied = time.monotonic()
        for topic, tables in self._generations.reading.items():
            age = self._progress.age(topic)
            if self._progress.topics[topic].phase is not Phase.FOLLOWING or math.isinf(age):
                continue  # an older record of the same key may still come out of another partition
            with self._noting_damage(topic):
                for table in tables.tables:
                    table.conflicts.forget_tombstones(int((time.time() - age - _KEEP_TOMBSTONES) * 1000))

    def _flush(self) -> None:
        """Bring the applied records to disk, with positions that control records have advanced since."""
        self._flushed = time.monotonic()
        for topic, tables in self._generations.reading.items():
            self._commit(tables)
            with self._noting_damage(topic):
                tables.flush()

    def _handle(self, event: Message) -> tuple[Partition, int] | None:
        """Return the position that an end-of-partition event proves; demand a rebuild for a lost position."""
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
            refusal = f"reading {partition.topic!r} was refused: {error.str()}; check the topic's ACLs"
            if self._progress.state is StoreState.LOADING:
                raise ConfigError(refusal)
            log.error("%s; lookups go on", refusal)
        else:
            self._note_error(error)
        return None

    def _note_error(self, error: KafkaError) -> None:
        self.last_error = error.str()
        if error.code() not in self._logged_errors:  # texts differ by brokers and milliseconds
            self._logged_errors.add(error.code())
            log.info("Kafka client: %s", self.last_error)

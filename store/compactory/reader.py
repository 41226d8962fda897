"""The one thread that reads the topics: consumes, applies, then moves positions on."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from threading import Event, Thread, current_thread
from typing import Literal

from compactory.batch import split
from compactory.errors import CompactoryError, ConfigError, StoreFailed
from compactory.feed import Feed
from compactory.kafka import Consumer, Kafka, KafkaError, Message, TopicPartition, event_kind, kafka_errors
from compactory.memory import give_back
from compactory.progress import Progress
from compactory.records import Partition, StoreState

__all__ = ["Reader"]

log = logging.getLogger("compactory.store")

_WAIT = 0.1  # seconds that a consume call waits for a first message; bounds how long stop() takes
_TIDY_EVERY = 60.0  # seconds between two rounds of forgetting old tombstones
_KEEP_GRAVES = 3600.0  # seconds of record time that a tombstone of a topic with several partitions is remembered
_BATCH = 2000  # messages per call: measured fastest while loading, as the batch then stays in the processor's cache


class Reader:
    """Reads every partition that `Progress` knows into the tables of its topic.

    It owns the tables' write side and the consumers. It loads with a far-fetching consumer until the store is
    complete, then goes on at the exact next offsets with one of small buffers. Its death is recorded in `Progress`.
    """

    def __init__(
        self,
        kafka: Kafka,
        feeds: Mapping[str, Feed],
        progress: Progress,
        on_complete: Callable[[], None],
    ) -> None:
        self._kafka = kafka
        self._feeds = feeds
        self._progress = progress
        self._on_complete = on_complete  # called once by the thread, when everything is applied up to the targets
        self._stopping = Event()
        self._thread: Thread | None = None
        self._assigned: set[Partition] = set()
        self._tidied = time.monotonic()
        self.last_error: str | None = None  # of the client as a whole: why nothing may be coming

    def start(self) -> None:
        """Start the thread."""
        self._thread = Thread(target=self._run, name="compactory-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, before start and by the thread itself."""
        self._stopping.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            with kafka_errors("read", self._kafka.bootstrap):
                self._read("load")
                if not self._stopping.is_set():
                    self._on_complete()
                    self._read("follow")
        except BaseException as error:  # noqa: BLE001 (even a SystemExit of a user's callable must wake waiters)
            if self._progress.move(StoreState.FAILED, error):
                # where it happened, not the text of foreign errors: that may quote a record's value
                what = str(error) if isinstance(error, CompactoryError) else type(error).__name__
                where = "".join(traceback.format_tb(error.__traceback__))
                log.critical("the reader died, nothing is kept up to date any more: %s\n%s", what, where)

    def _read(self, profile: Literal["load", "follow"]) -> None:
        """Read with one consumer; while loading only until the store is complete."""
        consumer = self._kafka.consumer(profile, self._note)
        self._assigned.clear()
        try:
            self._assign(consumer, self._progress.positions())
            if profile == "follow":
                give_back()  # what the loading consumer's prefetch took
            while not self._stopping.is_set():
                self._assign(consumer, self._progress.take_new())
                self._step(consumer)
                self._tidy()
                if profile == "load" and self._progress.is_complete():
                    return
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer, positions: Mapping[Partition, int]) -> None:
        new = {part: offset for part, offset in positions.items() if part not in self._assigned}
        if not new:
            return
        self._assigned.update(new)
        for topic, feed in self._feeds.items():
            feed.spread_over(sum(part.topic == topic for part in self._assigned))
        consumer.incremental_assign([TopicPartition(*part, offset) for part, offset in new.items()])

    def _step(self, consumer: Consumer) -> None:
        messages = consumer.consume(1, _WAIT)  # waits for one only: for more it would wait until it has them all
        if not messages:
            return
        messages += consumer.consume(_BATCH, 0)
        runs, events = split(messages, self._assigned)
        moved: list[tuple[Partition, int]] = []
        loading = self._progress.state is StoreState.LOADING
        for run in runs:
            self._feeds[run.partition.topic].apply(run, loading=loading)
            moved.append((run.partition, run.next_offset))
        moved.extend(end for event in events if (end := self._handle(event)) is not None)
        self._progress.advance(moved)

    def _tidy(self) -> None:
        if time.monotonic() - self._tidied < _TIDY_EVERY or self._progress.state is StoreState.LOADING:
            return
        self._tidied = time.monotonic()
        for feed in self._feeds.values():
            for table in feed.tables:
                table.forget_graves(int((time.time() - _KEEP_GRAVES) * 1000))

    def _handle(self, event: Message) -> tuple[Partition, int] | None:
        """Return the position that an end-of-partition event proves; raise for what must not be read over."""
        error = event.error()
        assert error is not None
        kind = event_kind(error)
        partition = Partition(str(event.topic()), int(event.partition() or 0))
        if kind == "end":
            # read_committed stops at the last stable offset: control records and aborted data before it are passed
            return partition, int(event.offset() or 0)
        if kind == "lost":
            raise StoreFailed(
                f"position lost in {partition.topic} partition {partition.partition}: {error.str()}. Records between "
                "were deleted or the topic was cut off; start the store anew to read it from the beginning"
            )
        if kind == "refused" and self._progress.state is StoreState.LOADING:
            raise ConfigError(f"reading {partition.topic!r} was refused: {error.str()}; check the topic's ACLs")
        self._note(error)
        return None

    def _note(self, error: KafkaError) -> None:
        if self.last_error != error.str():
            log.info("Kafka client: %s", error.str())
        self.last_error = error.str()

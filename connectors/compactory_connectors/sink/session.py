"""The loop of a sink while it is connected. Records of one partition go through these states:

POLLED → PREPARED → APPLIED    the offset in the database has moved; while records are applied, the next ones are
                               polled and prepared in a second thread
any → FORGOTTEN                the offset is elsewhere, the topic was created again, or the transaction lost a
                               deadlock: the partition starts again at the database's offset
any → PAUSED → FORGOTTEN       an operator pauses the sink; polls only keep the membership until it is resumed
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
import structlog

from compactory.records import Partition
from compactory_connectors.backoff import Interval
from compactory_connectors.kafka.consumer_group import Fetched, Group
from compactory_connectors.postgres.pausing import Pauses

from .applying import Applying
from .locator import Locator
from .record import Batch, Records
from .statements import Moved
from .status import Board

__all__ = ["Session"]

log = structlog.get_logger("compactory.sink")

_Prepared: TypeAlias = tuple[Fetched, "Future[Records | None]"]
"""Records that are being prepared; of ``Fetched`` only the last message is kept."""

_POLL = 0.1  # seconds that a poll waits for a record
_BEAT_EVERY = 1.0  # seconds; commits to Kafka, samples for metrics, retries that operators want
_COUNT_EVERY = 10.0  # seconds; the number of failed records, which operators change
_RETRIES = 10  # records in a transaction; new records are applied in between
_CHECK_EVERY = 5.0  # seconds; topics that were deleted and created again


@dataclass(slots=True)
class Session:
    """The loop over one connection. Owned by one thread. Raises psycopg.Error and CompactoryError."""

    group: Group
    locator: Locator
    applying: Applying
    pauses: Pauses
    board: Board
    stop: threading.Event
    batch: int
    connected: Callable[[], None]
    is_paused: bool = False
    retrying: set[Partition] = field(default_factory=set)
    """Partitions with records to retry, some of them in each round."""
    counting: Interval = field(default_factory=lambda: Interval(_COUNT_EVERY, at_once=True))

    def run(self) -> None:
        beat, check = Interval(_BEAT_EVERY), Interval(_CHECK_EVERY)
        prepared: list[_Prepared] = []
        with ThreadPoolExecutor(1, thread_name_prefix="compactory-sink-ahead") as pool:
            while not self.stop.is_set():
                if self.pauses.have_changed():
                    self._obey_pause()
                if self.is_paused:
                    prepared = []
                    self.group.poll(1, _POLL)  # keeps the membership
                    self.board.polled_at = time.monotonic()
                    continue
                polled = self.group.poll(self.batch, 0 if prepared or self.retrying else _POLL)
                prepared = self._apply_all(prepared, polled, pool)
                self._retry()
                self.board.polled_at = time.monotonic()
                if beat.is_over():
                    self._beat({fetched.partition for fetched, _ in prepared})
                if check.is_over():
                    self._check_topics()

    def _apply_all(self, prepared: list[_Prepared], polled: list[Fetched], pool: ThreadPoolExecutor) -> list[_Prepared]:
        """Apply prepared records, and start to prepare what was polled; return what is being prepared.

        Preparing starts when the last transaction begins to wait for Postgres: beside a thread that sends many
        statements, both threads would be slower.
        """
        started: list[_Prepared] = []

        def prepare_next() -> None:  # does nothing at a second call
            while polled:
                fetched = polled.pop(0)
                records = pool.submit(self._prepare, fetched)
                started.append((fetched._replace(messages=fetched.messages[-1:]), records))

        for number, (fetched, records) in enumerate(prepared, 1):
            if self.group.is_current(fetched):
                self._apply(fetched, records, prepare_next if number == len(prepared) else lambda: None)
        prepare_next()
        return started

    def _obey_pause(self) -> None:
        """Read nothing while an operator has paused the sink; records that were read are read again later."""
        sink = self.applying.sink
        self.is_paused = sink in self.pauses.of("sink")
        self.board.paused = [item for item in self.pauses.fields() if item["name"] == sink]
        if self.is_paused:
            self.group.commit()
            self.group.detach()
            self.board.is_ready, self.board.detail = True, None
        else:
            self.group.attach(self.locator.locate)

    def _check_topics(self) -> None:
        """Find new topics of a pattern, and topics that were created again. Raises Unreachable without Kafka."""
        self.group.look_for_topics()
        topics = sorted({part.topic for part in self.group.positions})
        if not topics:
            self.locator.kafka.cluster_id()
        elif not self.locator.check_topics(topics):
            self.group.forget_positions(self.group.positions)  # the next poll raises the error

    def _prepare(self, fetched: Fetched) -> Records | None:
        """Return prepared records; None if the topic was created again. Checked after the records were read."""
        records = self.applying.prepare(fetched.messages)
        return records if self.locator.check_topics([fetched.partition.topic]) else None

    def _apply(self, fetched: Fetched, prepared: Future[Records | None], prepare_next: Callable[[], object]) -> None:
        part, start = fetched.partition, fetched.start
        try:
            with self.board.consuming(part):
                records = prepared.result()
                if records is None:
                    self.group.forget_positions([part])  # the next poll raises the error
                    return
                records.prepare_next = prepare_next
                batch = Batch(part, start, records, records[-1].offset + 1, fetched.messages[-1].leader_epoch())
                failed = self.applying.apply(batch)
        except Moved:
            self.board.count(part, seeks=1)
            log.warning("the database's offset has moved: seeking", **self._log_fields(part), expected=start)
            self.group.forget_positions([part])
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            self.board.count(part, rollbacks=1)
            self.group.forget_positions([part])  # read again at once: the other transaction has committed
        except Exception:
            self.board.count(part, rollbacks=1)
            raise
        else:
            self.connected()
            self.group.advance(part, batch.end)
            self.board.count(part, batches=1, rows=len(records) - len(failed), failed=len(failed))
            self.board.set_aside = {**self.board.set_aside, part: self.board.set_aside.get(part, 0) + len(failed)}
            for item in failed[:10]:
                log.warning("record set aside", **self._log_fields(part), offset=item.record.offset, reason=item.reason)

    def _log_fields(self, partition: Partition) -> dict[str, Any]:
        return {"sink": self.applying.sink, "topic": partition.topic, "partition": partition.partition}

    def _beat(self, unapplied: Collection[Partition]) -> None:
        """Commit to Kafka, refresh figures, find retries. ``unapplied``: partitions with prepared records."""
        positions = self.group.offsets()
        self.retrying.update(self.applying.table.partitions_to_retry())
        for part, position in positions.items():
            end = self.group.ends.get(part, 0)
            if part not in unapplied and position is not None and position < end:  # control records and gaps
                self._skip(Batch(part, position, [], end))
        self.group.commit()
        positions = self.group.offsets()
        self.board.positions, self.board.lag = positions, self.group.lag()
        if self.counting.is_over():
            self.board.set_aside = self.applying.table.failed_counts()
        if positions and None not in positions.values():
            self.connected()
            self.board.is_ready, self.board.detail = True, None
        self.board.rebalances = self.group.rebalances

    def _retry(self) -> None:
        """Retry some records of one partition; new records are applied in between."""
        self.retrying &= self.group.positions.keys()
        limit, partition = min(_RETRIES, self.batch), next(iter(self.retrying), None)
        if partition is not None and self.applying.apply_again(partition, limit) < limit:
            self.retrying.discard(partition)
            self.counting = Interval(_COUNT_EVERY, at_once=True)

    def _skip(self, batch: Batch) -> None:
        try:
            self.applying.move(batch)
        except Moved:
            self.group.forget_positions([batch.partition])
        else:
            self.group.advance(batch.partition, batch.end)

"""The loop of a sink while it has its connections: poll, apply, and check topics and failed records now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import psycopg
import structlog

from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Fetched, Group

from .applying import Applying, Outcome
from .offsets import Locator, Moved
from .record import Batch, Records
from .status import Board

__all__ = ["Session"]

log = structlog.get_logger("compactory.sink")

_Due: TypeAlias = tuple[Fetched, "Future[Records | None]"]

_POLL = 0.1  # seconds that a poll waits for a record
_BEAT = 1.0  # seconds between commits to Kafka, samples, and looks for what is tried again
_COUNT = 10.0  # seconds between counts of the records set aside, of which an operator may have dropped some
_RETRIES = 100  # records that are tried again in one transaction, at most
_RETRY_SECONDS = 1.0  # the next transaction tries twice as many if this one took less, and else half as many
_CHECK = 5.0  # seconds between looks whether topics are still the same


@dataclass(slots=True)
class Session:
    """One life of the connections. Owned by one thread. Raises psycopg.Error and CompactoryError."""

    sink: str
    group: Group
    locator: Locator
    applying: Applying
    apply: Callable[[Batch], Outcome]
    board: Board
    stop: threading.Event
    batch: int
    connected: Callable[[], None]
    retrying: set[Partition] = field(default_factory=set)
    """Partitions with records that are tried again, some of them in each round."""
    retries: int = 1
    count_at: float = 0.0

    def run(self) -> None:
        """Apply what comes until ``stop`` is set."""
        beat = check = time.monotonic() + _BEAT
        due: list[_Due] = []
        with ThreadPoolExecutor(1, thread_name_prefix="compactory-sink-ahead") as ahead:
            while not self.stop.is_set():
                found = self.group.poll(self.batch, 0 if due or self.retrying else _POLL)
                read: list[_Due] = []
                prepare = partial(self._submit, ahead, found, read)
                for number, (fetched, records) in enumerate(due, 1):
                    if self.group.is_current(fetched):
                        self._apply(fetched, records, prepare if number == len(due) else lambda: None)
                prepare()
                due = read
                self._retry()
                self.board.polled_at = time.monotonic()
                now = time.monotonic()
                if now >= beat:
                    self._look_around({fetched.partition for fetched, _ in due})
                    beat = now + _BEAT
                if now >= check:
                    self._check_topics()
                    check = now + _CHECK

    def _check_topics(self) -> None:
        """Find new topics of a pattern. See that topics are the same, and that Kafka answers: no record tells it."""
        self.group.look_for_topics()
        topics = sorted({part.topic for part in self.group.positions})
        if not topics:
            self.locator.kafka.cluster_id()
        elif not self.locator.check_topics(topics):
            self.group.forget_positions(self.group.positions)  # the next poll says what is wrong

    def _submit(self, ahead: ThreadPoolExecutor, found: list[Fetched], read: list[_Due]) -> None:
        """Have what was found prepared, once. Beside a thread that asks Postgres much, both would be slower."""
        while found:
            fetched = found.pop(0)
            read.append((fetched._replace(messages=fetched.messages[-1:]), ahead.submit(self._prepared, fetched)))

    def _prepared(self, fetched: Fetched) -> Records | None:
        """The records; None if their topic is another one: it is asked after they were read, so none slips in."""
        records = self.applying.prepare(fetched.messages)
        return records if self.locator.check_topics([fetched.partition.topic]) else None

    def _apply(self, fetched: Fetched, prepared: Future[Records | None], prepare_next: Callable[[], object]) -> None:
        part, start = fetched.partition, fetched.start
        try:
            with self.board.consuming(part):
                records = prepared.result()
                if records is None:
                    self.group.forget_positions([part])  # the next poll says what is wrong
                    return
                records.prepare_next = prepare_next
                batch = Batch(part, start, records, records[-1].offset + 1, fetched.messages[-1].leader_epoch())
                failed = self.apply(batch)
        except Moved:
            self.board.count(part, seeks=1)
            place = {"sink": self.sink, "topic": part.topic, "partition": part.partition, "expected": start}
            log.warning("the database's offset is another: seeking", **place)
            self.group.forget_positions([part])
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            self.board.count(part, rollbacks=1)
            self.group.forget_positions([part])  # and read again, at once: the other one has committed
        except Exception:
            self.board.count(part, rollbacks=1)
            raise
        else:
            self.connected()
            self.group.advance(part, batch.end)
            self.board.count(part, batches=1, rows=len(records) - len(failed), failed=len(failed))
            self.board.set_aside = {**self.board.set_aside, part: self.board.set_aside.get(part, 0) + len(failed)}
            place = {"sink": self.sink, "topic": part.topic, "partition": part.partition}
            for item in failed[:10]:
                log.warning("record set aside", **place, offset=item.record.offset, reason=item.reason)

    def _look_around(self, due: Container[Partition]) -> None:
        """``due``: partitions with records that are not applied yet."""
        positions = self.group.offsets()
        self.retrying.update(self.applying.failed.asked_again())
        for part, position in positions.items():
            end = self.group.ends.get(part, 0)
            if part not in due and position is not None and position < end:  # marks of transactions, and holes
                self._pass_over(Batch(part, position, [], end))
        self.group.commit()
        positions = self.group.offsets()
        self.board.positions, self.board.lag = positions, self.group.lag()
        if (now := time.monotonic()) >= self.count_at:
            self.board.set_aside, self.count_at = self.applying.failed.counts(), now + _COUNT
        if positions and None not in positions.values():
            self.connected()
            self.board.located, self.board.error = True, None
        self.board.rebalances = self.group.rebalances

    def _retry(self) -> None:
        """Try some records of one partition again, so that new records are applied in between."""
        self.retrying &= self.group.positions.keys()
        if not self.retrying:
            return
        part, began = next(iter(self.retrying)), time.monotonic()
        if self.applying.apply_again(part, self.retries) < self.retries:
            self.retrying.discard(part)
            self.count_at = 0.0
        is_quick = time.monotonic() - began < _RETRY_SECONDS
        self.retries = min(self.retries * 2, _RETRIES) if is_quick else max(self.retries // 2, 1)

    def _pass_over(self, batch: Batch) -> None:
        try:
            self.applying.move(batch)
        except Moved:
            self.group.forget_positions([batch.partition])
        else:
            self.group.advance(batch.partition, batch.end)

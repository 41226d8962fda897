"""A batch of one partition in one Postgres transaction: lock its offset, apply the records, move the offset.

The batch is applied whole first. Where a record is at fault, it is applied once more in halves, each within a
savepoint, until the record stands alone; it is set aside in the same transaction, and the others are applied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from compactory.errors import CompactoryError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Message
from compactory.records import Partition
from compactory_connectors.postgres.handled import MESSAGE_ID, forget_handled, note_handled
from compactory_connectors.postgres.postgres_errors import refusal

from .failed import DeadLetters, FailedRecords
from .offsets import Moved, Offsets
from .record import Batch, Failed, RecordRefused, Records, SinkRecord, SinkStopped, part_of

__all__ = ["Applying", "Handler", "Outcome", "Prepare"]

Handler = Callable[[psycopg.Connection[Any], Records], object]
"""Writes the effect of records within the open transaction of the connection, which it must not commit."""

Prepare = Callable[[Records], object]
"""Does what it can for records before their turn, in another thread and without a connection."""

Outcome = Sequence[Failed]
"""Records that were set aside."""

_RAISED = (Exception, SystemExit, KeyboardInterrupt)  # by a handler: sys.exit would end this thread alone, in silence

# Cardinality, data, integrity, WITH CHECK OPTION, limits (of an index row, a tsvector), PL/pgSQL's RAISE, and a failed
# statement that the handler hid.
_OF_RECORD = ("21", "22", "23", "44", "54", "P0", "25P02")


@dataclass(slots=True, kw_only=True)
class Applying:
    """Applies batches on one connection. Owned by one thread.

    ``stops``: the first record at fault ends the sink, once those before it are committed. ``dead_letters``: where
    failed records go in place of the table. ``dedupes``: a message of an outbox is applied once, by its id.
    """

    connection: psycopg.Connection[Any]
    sink: str
    handler: Handler
    preparing: Prepare | None = None
    stops: bool = False
    dead_letters: DeadLetters | None = None
    dedupes: bool = False
    alone: threading.Lock = field(default_factory=threading.Lock)
    """Held while threads take turns."""
    offsets: Offsets = field(init=False)
    failed: FailedRecords = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = Offsets(self.connection, self.sink)
        self.failed = FailedRecords(self.connection, self.sink)

    def prepare(self, messages: Sequence[Message]) -> Records:
        """Messages as records, with what can be done before their turn. Thread-safe; raises CompactoryError."""
        with collector_paused():  # they come by the thousand, and hold no cycles
            records = self._given(SinkRecord.of(messages))
            if self.preparing is not None:
                self.preparing(records)
        return records

    def _given(self, records: Iterable[SinkRecord], *, again: bool = False) -> Records:
        return Records(records, holds=self.dead_letters is None, again=again)

    def apply(self, batch: Batch, part: Callable[[], None] | None = None) -> Outcome:
        """Apply a batch and move the offset to its end, or do nothing. ``part`` locks and notes some records instead.

        Raises Moved where the database's offset is not the batch's start, SinkStopped, psycopg.Error, CompactoryError.
        """
        try:
            return self._attempt(batch, part, isolating=False)
        except _RAISED as error:
            if not _is_of_record(error):
                raise
        return self._attempt(batch, part, isolating=True)

    def apply_again(self, partition: Partition, limit: int) -> int:
        """Try records of a partition again that were set aside, where an operator wants it; return how many.

        The first ``limit`` of them are tried in one transaction. Raises as :meth:`apply`.
        """
        with self.connection.transaction():
            self.offsets.known([partition])  # locks it
            failed: list[Failed] = []
            records = self.failed.take_again(partition, limit)
            self._isolate(records, failed, set(), stops=False)
            self.failed.add(failed)
            self.failed.follow(partition, records, failed)
        return len(records)

    def apply_unstored(self, records: Sequence[SinkRecord]) -> Outcome:
        """Apply records within the caller's transaction; set none aside, move no offset. Raises as :meth:`apply`."""
        failed: list[Failed] = []
        self._isolate(records, failed, set(), stops=False)
        return failed

    def move(self, batch: Batch) -> None:
        """Move an offset over a part of the log that holds no records. Raises Moved, psycopg.Error."""
        with self.connection.transaction():
            self.offsets.move(batch, parted=True)

    def _attempt(self, batch: Batch, part: Callable[[], None] | None, *, isolating: bool) -> Outcome:
        failed: list[Failed] = []
        stopped = None
        with self.connection.transaction():
            if part:
                part()
            held, parted = (True, False) if part else self.offsets.lock(batch.partition, batch.start)
            records = self._left(batch) if parted else batch.records
            blocked = self.failed.held(batch) if held else set()
            if isolating or blocked:
                self._isolate(list(records), failed, blocked, stops=self.stops)
            else:
                self._call(records, failed)
            if self.connection.info.transaction_status is TransactionStatus.IDLE:
                raise SinkStopped(f"sink {self.sink!r}: its handler ended the transaction of the offset by COMMIT or"
                                  " ROLLBACK: use conn.transaction()")  # fmt: skip
            if not self.stops:
                self._keep(failed)
            elif failed:
                stopped = min(failed, key=lambda item: item.record.offset)
                batch = batch._replace(end=stopped.record.offset, leader_epoch=None)
            if part is None:
                self.offsets.move(batch, parted=parted)
            elif stopped:
                self._stop_at(stopped)
        if stopped:
            self._stop_at(stopped)
        return failed

    def _left(self, batch: Batch) -> list[SinkRecord]:
        """The records that no part has done yet."""
        done, count = self.offsets.parts(batch.partition)
        return [record for record in batch.records if record.offset >= done.get(part_of(record, count), batch.start)]

    def _keep(self, failed: list[Failed]) -> None:
        if self.dead_letters is not None:
            self.dead_letters.send(failed)
        else:
            self.failed.add(failed)

    def _call(self, records: Sequence[SinkRecord], failed: list[Failed], *, again: bool = False) -> None:
        if not records:
            return
        given = records if isinstance(records, Records) else self._given(records, again=again)
        if self.dedupes:
            given = self._new(given)
        if given:
            self.handler(self.connection, given)
        if self.stops and given.failed:
            raise RecordRefused(given.failed[0].reason)
        if self.dedupes and given.failed:
            ids = [_message_id(item.record) for item in given.failed]
            forget_handled(self.connection, self.sink, given[0].topic, filter(None, ids))
        failed += given.failed

    def _new(self, records: Records) -> Records:
        """The records without those whose message was handled before; the others are noted as handled."""
        ids = [_message_id(record) for record in records]
        new = note_handled(self.connection, self.sink, records[0].topic, filter(None, ids))
        left = [record for record, name in zip(records, ids, strict=True) if name is None or _take(new, name)]
        return records if len(left) == len(records) else self._given(left, again=records.again)

    def _isolate(
        self, records: Sequence[SinkRecord], failed: list[Failed], blocked: set[bytes], *, stops: bool
    ) -> None:
        """Apply records in halves, with ``stops`` up to the first that fails; of ``blocked`` keys one was set aside."""
        if stops and failed:
            return
        waiting = [record for record in records if record.key in blocked]
        if waiting:
            failed += [Failed(record, None) for record in waiting]
            end = waiting[0].offset if stops else math.inf
            records = [record for record in records if record.key not in blocked and record.offset < end]
        if not records:
            return
        found: list[Failed] = []
        try:
            with self.connection.transaction():
                self._call(records, found, again=True)
                self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _RAISED as error:
            if not _is_of_record(error):
                raise
            if len(records) > 1:
                self._isolate(records[: len(records) // 2], failed, blocked, stops=stops)
                self._isolate(records[len(records) // 2 :], failed, blocked, stops=stops)
                return
            found = [Failed(records[0], _reason_of(error), type(error).__qualname__)]
        failed += found
        if self.dead_letters is None:
            blocked |= {item.record.key for item in found if item.record.key is not None}

    def _stop_at(self, failed: Failed) -> NoReturn:
        topic, partition, offset = failed.record[:3]
        raise SinkStopped(
            f"sink {self.sink!r} stopped at offset {offset} of partition {partition} of topic {topic!r}:"
            f" {failed.reason or 'an earlier record of its key is set aside'}; repair the cause, have failed"
            " records set aside (errors.tolerance=all in SINK.json, on_failure='set_aside' in Python), or skip"
            f" it: compactory sink offsets set {self.sink} {topic} {partition} {offset + 1}"
        )


def _message_id(record: SinkRecord) -> str | None:
    return next((value.decode() for name, value in record.headers if name == MESSAGE_ID and value), None)


def _take(names: set[str], name: str) -> bool:
    """Whether it was there; it is not any more."""
    found = name in names
    names.discard(name)
    return found


def _is_of_record(error: BaseException) -> bool:
    """Whether other records may do better: not so where a server is away or something is set wrongly."""
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return error.sqlstate.startswith(_OF_RECORD)
    return not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | CompactoryError | Moved)


def _reason_of(error: BaseException) -> str:
    """Why a record failed, without values."""
    if isinstance(error, RecordRefused):
        return str(error)
    if isinstance(error, psycopg.Error):
        return refusal(error)
    frames = extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the handler raised {type(error).__name__}{place}"

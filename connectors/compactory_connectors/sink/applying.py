"""Applies a batch of one partition in one Postgres transaction: lock the offset, apply the records, move the offset.

States of a batch:

    APPLY → COMMITTED            no record is at fault
    APPLY → ISOLATE → COMMITTED  a record is at fault: the batch is applied again in halves, each in a savepoint, until
                                 the record is alone; it is set aside in the same transaction, the others are applied
    ISOLATE → STOPPED            with ``stops``: the records before the one at fault are committed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from compactory.errors import CompactoryError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Message
from compactory.records import Partition
from compactory_connectors.postgres.postgres_errors import refusal

from .record import Batch, Failed, RecordRefused, Records, SinkRecord, SinkStopped
from .statements import Moved, SinkTable

__all__ = ["Applying", "Handler", "Outcome", "Prepare"]

Handler = Callable[[psycopg.Connection[Any], Records], object]
"""Writes the effect of records in the open transaction of the connection. Must not commit it."""

Prepare = Callable[[Records], object]
"""Prepares records in another thread, without a connection."""

Outcome = Sequence[Failed]
"""The records that were set aside."""

_RAISED = (Exception, SystemExit, KeyboardInterrupt)  # by a handler: sys.exit would end only this thread, silently

# Cardinality, data, integrity, WITH CHECK OPTION, limits (of an index row, a tsvector), PL/pgSQL's RAISE, and a failed
# statement that the handler hid.
_OF_RECORD = ("21", "22", "23", "44", "54", "P0", "25P02")


@dataclass(slots=True, kw_only=True)
class Applying:
    """Applies batches on one connection. Owned by one thread.

    ``stops``: the first record at fault ends the sink, after the records before it are committed.
    """

    connection: psycopg.Connection[Any]
    sink: str
    handler: Handler
    preparing: Prepare | None = None
    stops: bool = False
    table: SinkTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = SinkTable(self.connection, self.sink)

    def prepare(self, messages: Sequence[Message]) -> Records:
        """Return messages as prepared records. Thread-safe. Raises CompactoryError."""
        with collector_paused():  # records come by the thousand, and have no cycles
            records = Records(SinkRecord.of(messages))
            if self.preparing is not None:
                self.preparing(records)
        return records

    def apply(self, batch: Batch) -> Outcome:
        """Apply a batch and move the offset to its end.

        Raises Moved if the database's offset is not the batch's start, SinkStopped, psycopg.Error, CompactoryError;
        then nothing is applied.
        """
        try:
            return self._attempt(batch, isolating=False)
        except _RAISED as error:
            if not _is_of_record(error):
                raise
        return self._attempt(batch, isolating=True)

    def apply_again(self, partition: Partition, limit: int) -> int:
        """Apply failed records of a partition again that an operator has chosen; return their number.

        The first ``limit`` of them are applied in one transaction. Raises as :meth:`apply` does.
        """
        with self.connection.transaction():
            self.table.rows([partition])  # locks the partition
            failed: list[Failed] = []
            records = self.table.take_retries(partition, limit)
            self._isolate(records, failed, set(), stops=False)
            self.table.add_failed(failed)
            self.table.retry_later(partition, records, failed)
        return len(records)

    def move(self, batch: Batch) -> None:
        """Move an offset over a part of the log without records. Raises Moved, psycopg.Error."""
        with self.connection.transaction():
            self.table.move(batch)

    def _attempt(self, batch: Batch, *, isolating: bool) -> Outcome:
        failed: list[Failed] = []
        stopped = None
        with self.connection.transaction():
            has_failed = self.table.lock(batch.partition, batch.start)
            blocked = self.table.blocked_keys(batch) if has_failed else set()
            if isolating or blocked:
                self._isolate(list(batch.records), failed, blocked, stops=self.stops)
            else:
                self._call(batch.records, failed)
            if self.connection.info.transaction_status is TransactionStatus.IDLE:
                raise SinkStopped(f"sink {self.sink!r}: its handler ended the transaction of the offset by COMMIT or"
                                  " ROLLBACK: use conn.transaction()")  # fmt: skip
            if not self.stops:
                self.table.add_failed(failed)
            elif failed:
                stopped = min(failed, key=lambda item: item.record.offset)
                batch = batch._replace(end=stopped.record.offset, leader_epoch=None)
            self.table.move(batch)
        if stopped:
            raise self._stop_at(stopped)
        return failed

    def _call(self, records: Sequence[SinkRecord], failed: list[Failed], *, is_retry: bool = False) -> None:
        """Call the handler; add the records that it sets aside to ``failed``."""
        if not records:
            return
        batch = records if isinstance(records, Records) else Records(records, is_retry=is_retry)
        self.handler(self.connection, batch)
        if self.stops and batch.failed:
            raise RecordRefused(batch.failed[0].reason)
        failed += batch.failed

    def _isolate(
        self, records: Sequence[SinkRecord], failed: list[Failed], blocked: set[bytes], *, stops: bool
    ) -> None:
        """Apply records in halves; with ``stops`` up to the first failure. Sets records of ``blocked`` keys aside."""
        if stops and failed:
            return
        waiting = [record for record in records if record.key in blocked]
        if waiting:
            failed += [Failed(record, None) for record in waiting]
            end = waiting[0].offset if stops else math.inf
            records = [record for record in records if record.key not in blocked and record.offset < end]
        if not records:
            return
        refused: list[Failed] = []
        try:
            with self.connection.transaction():
                self._call(records, refused, is_retry=True)
                self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _RAISED as error:
            if not _is_of_record(error):
                raise
            if len(records) > 1:
                self._isolate(records[: len(records) // 2], failed, blocked, stops=stops)
                self._isolate(records[len(records) // 2 :], failed, blocked, stops=stops)
                return
            refused = [Failed(records[0], _reason_of(error))]
        failed += refused
        blocked |= {item.record.key for item in refused if item.record.key is not None}

    def _stop_at(self, failed: Failed) -> SinkStopped:
        topic, partition, offset = failed.record[:3]
        return SinkStopped(
            f"sink {self.sink!r} stopped at offset {offset} of partition {partition} of topic {topic!r}:"
            f" {failed.reason or 'an earlier record of its key is set aside'}; repair the cause, have failed"
            " records set aside (errors.tolerance=all in SINK.json, on_failure='set_aside' in Python), or skip"
            f" it: compactory sink offsets set {self.sink} {topic} {partition} {offset + 1}"
        )


def _is_of_record(error: BaseException) -> bool:
    """Return True if the error is of a record: no server is away, and no setting is wrong."""
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return error.sqlstate.startswith(_OF_RECORD)
    return not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | CompactoryError | Moved)


def _reason_of(error: BaseException) -> str:
    """Return why a record failed, without values."""
    if isinstance(error, RecordRefused):
        return str(error)
    if isinstance(error, psycopg.Error):
        return refusal(error)
    frames = extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the handler raised {type(error).__name__}{place}"

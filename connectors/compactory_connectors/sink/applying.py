"""A batch of one partition in one Postgres transaction: lock its offset, apply the records, move the offset.

The batch is applied whole first. Where a record is at fault, it is applied once more in halves, each within a
savepoint, until the record stands alone; it is set aside in the same transaction, and the others are applied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import psycopg

from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Message
from compactory.records import Partition

from .failed import FailedRecords
from .failure import RecordRefused, is_of_record, reason_of, stop_at
from .offsets import Offsets
from .record import Batch, Failed, Records, SinkRecord

__all__ = ["Applying", "Handler", "Outcome", "Prepare"]

Handler = Callable[[psycopg.Connection[Any], Records], object]
"""Writes the effect of records within the open transaction of the connection, which it must not commit."""

Prepare = Callable[[Records], object]
"""Does what it can for records before their turn, in another thread and without a connection."""

Outcome = Sequence[Failed]
"""Records that were set aside."""


_WAITS = "an earlier record of its key is set aside"


class _DeadLetters(Protocol):
    def send(self, failed: Sequence[Failed]) -> None: ...


class Applying:
    """Applies batches on one connection. Owned by one thread.

    ``stops``: the first record at fault ends the sink, once those before it are committed. ``dead_letters``: where
    failed records go in place of the table.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        sink: str,
        handler: Handler,
        *,
        prepare: Prepare | None = None,
        stops: bool = False,
        dead_letters: _DeadLetters | None = None,
    ) -> None:
        self.offsets = Offsets(connection, sink)
        self.failed = FailedRecords(connection, sink)
        self.connection = connection
        self._sink = sink
        self._handler = handler
        self._prepare = prepare
        self._stops = stops
        self._dead_letters = dead_letters
        self.alone = threading.Lock()
        """Held while threads take turns."""

    def prepare(self, messages: Sequence[Message]) -> Records:
        """Messages as records, with what can be done before their turn. Thread-safe; raises CompactoryError."""
        with collector_paused():  # they come by the thousand, and hold no cycles
            records = self._given(SinkRecord.of(messages))
        if self._prepare is not None:
            self._prepare(records)
        return records

    def _given(self, records: Iterable[SinkRecord]) -> Records:
        return Records(records, holds=self._dead_letters is None)

    def apply(self, batch: Batch) -> Outcome:
        """Apply a batch and move the offset to its end, or do nothing.

        Raises Moved where the database's offset is not the batch's start, SinkStopped, psycopg.Error, CompactoryError.
        """
        return self._whole_or_halves(lambda isolating: self._attempt(batch, isolating=isolating))

    def apply_again(self, partition: Partition) -> Outcome:
        """Try records of a partition again that were set aside, where an operator wants it. Raises as :meth:`apply`."""
        with self.connection.transaction():
            self.offsets.known([partition])  # locks it
            failed: list[Failed] = []
            self._isolate(self.failed.take_again(partition), failed, set(), stops=False)
            self.failed.add(failed)
        return failed

    def move(self, batch: Batch) -> None:
        """Move an offset over a part of the log that holds no records. Raises Moved, psycopg.Error."""
        with self.connection.transaction():
            self.offsets.finish(batch)

    def apply_part(self, batch: Batch, begin: Callable[[], None]) -> Outcome:
        """Apply some of a batch's records after ``begin``, which locks and notes them. Raises as :meth:`apply`."""
        return self._whole_or_halves(lambda isolating: self._part(batch, begin, isolating=isolating))

    def _whole_or_halves(self, attempt: Callable[[bool], Outcome]) -> Outcome:
        try:
            return attempt(False)
        except Exception as error:
            if not is_of_record(error):
                raise
        return attempt(True)

    def _attempt(self, batch: Batch, *, isolating: bool) -> Outcome:
        failed: list[Failed] = []
        with self.connection.transaction():
            held, parted = self.offsets.lock(batch.partition, batch.start)
            left = batch._replace(records=self.offsets.left(batch)) if parted else batch
            self._records(left, failed, held=held, isolating=isolating)
            stopped = self._first_at_fault(failed)
            if stopped:
                self.offsets.move(batch.partition, batch.start, stopped.record.offset)
            elif parted:
                self.offsets.finish(batch)
            else:
                self.offsets.move(batch.partition, batch.start, batch.end)
        if stopped:
            stop_at(self._sink, stopped.record, stopped.reason or _WAITS)
        return failed

    def _part(self, batch: Batch, begin: Callable[[], None], *, isolating: bool) -> Outcome:
        failed: list[Failed] = []
        with self.connection.transaction():
            begin()
            self._records(batch, failed, held=True, isolating=isolating)
            if stopped := self._first_at_fault(failed):
                stop_at(self._sink, stopped.record, stopped.reason or _WAITS)
        return failed

    def _records(self, batch: Batch, failed: list[Failed], *, held: bool, isolating: bool) -> None:
        blocked = self.failed.held(batch) if held else set()
        if isolating or blocked:
            self._isolate(list(batch.records), failed, blocked, stops=self._stops)
        else:
            self._call(batch.records, failed)
        if not self._stops:
            self._keep(failed)

    def _keep(self, failed: list[Failed]) -> None:
        if self._dead_letters is not None:
            self._dead_letters.send(failed)
        else:
            self.failed.add(failed)

    def _call(self, records: Sequence[SinkRecord], failed: list[Failed]) -> None:
        if not records:
            return
        given = records if isinstance(records, Records) else self._given(records)
        self._handler(self.connection, given)
        if self._stops and given.failed:
            raise RecordRefused(given.failed[0].reason)
        failed += given.failed

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
                self._call(records, found)
                self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except Exception as error:
            if not is_of_record(error):
                raise
            if len(records) > 1:
                self._isolate(records[: len(records) // 2], failed, blocked, stops=stops)
                self._isolate(records[len(records) // 2 :], failed, blocked, stops=stops)
                return
            found = [Failed(records[0], reason_of(error), type(error).__qualname__)]
        failed += found
        if self._dead_letters is None:
            blocked |= {item.record.key for item in found if item.record.key is not None}

    def _first_at_fault(self, failed: Sequence[Failed]) -> Failed | None:
        if not self._stops:
            return None
        return min(failed, key=lambda item: item.record.offset, default=None)

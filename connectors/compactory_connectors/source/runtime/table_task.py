"""A table of a session: it is polled, its removals are checked, and its records are published."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import structlog

from compactory_connectors.connect.record.record import RowError, RowFailed
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.kafka.producer_record import Copy

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Phase
from ..polling.cursor_reader import CursorReader
from ..polling.living_rows import LivingRows
from ..polling.reader import Reader, RecordBatch
from ..polling.table_reader import open_reader
from ..postgres.chunk_reader import PAGE_ROWS
from ..postgres.server import Server
from ..removals.change_guard import ChangeGuard
from ..removals.cleanup import TopicCleanup
from ..removals.pending_approval import PendingApproval
from ..removals.removal_guard import RemovalGuard
from ..removals.sweeper import Sweeper
from ..status.orders import Stop
from ..verify.comparison import Comparison
from .poll_preparation import PartitionGrowth, begins_empty, expectation, is_first_load, topic_comparison
from .repair import resend_rows
from .schedule import Schedule
from .session_context import SessionContext

__all__ = ["TableTask"]

log = structlog.get_logger("compactory.source")

_MOST_LOGGED = 20
"""Skipped rows of one page that are logged one by one, where the connector asks for that."""


class TableTask:
    """A table that is polled. Owned by the session's thread. Raises psycopg.Error and the errors of Kafka's side.

    ``partitions`` is the number of partitions of its topics; ``neighbours`` are tables that are published there, too.
    """

    def __init__(
        self,
        context: SessionContext,
        server: Server,
        reader: Reader,
        *,
        partitions: int,
        neighbours: list[str],
    ) -> None:
        connector = context.connector
        self.plan = reader.plan
        self.name = self.plan.qualified
        self.reader = reader
        self.neighbours = neighbours
        self.waits_for_transaction = False
        self.schedule = Schedule(interval=connector.poll_interval_ms / 1000, attempts=connector.retry_attempts)
        self._context = context
        self._server = server
        self._partitions = partitions
        self._key = self.plan.offset_key(server.database)
        self._page_rows = min(PAGE_ROWS, connector.batch_max_rows)
        self._guard = RemovalGuard(
            server, self.plan, context.publisher, partial(context.board.count_stopped_removals, self.name)
        )
        approval = PendingApproval(connector.name, self.name, context.orders, context.board)
        rows = LivingRows(server, self.plan)
        self._change_guard: ChangeGuard | None = None  # if any number of values may change at once
        if connector.max_changed_percent < 100 and not (self.plan.keyless or self.plan.rows.routed):
            self._change_guard = ChangeGuard(context.kafka, rows, approval, connector.max_changed_percent)
        self._growth = PartitionGrowth(self.plan, context.kafka, approval, partitions)
        self.cleanup = TopicCleanup(
            reader=reader,
            rows=rows,
            sweeper=Sweeper(context.kafka, server, self.plan, self._home),
            approval=approval,
            percent=connector.max_removed_percent,
            page_rows=self._page_rows,
            interval=connector.sweep_interval_ms / 1000,
            other_tables=neighbours,
            catch_up=self._catch_up,
            send=self._delete_copies,
        )
        self._comparison: Comparison | None = None  # with the records of its topic, in the phase COMPARING
        self._stop: Stop = threading.Event()  # of the call that runs
        self._key_digest: str | None = None

    @property
    def remembered_transactions(self) -> int:
        seen_snapshot = self.reader.offset.seen_snapshot
        return len(seen_snapshot.seen or ()) if seen_snapshot is not None else 0

    @property
    def wake_at(self) -> float:
        """The time when there is something to do, by the monotonic clock."""
        if self.schedule.is_failing or self._growth.is_held:
            return self.schedule.due
        return min(self.schedule.due, self.cleanup.wake_at)

    @property
    def is_sweep_due(self) -> bool:
        is_stopped = self.schedule.is_failing or self._growth.is_held
        return not is_stopped and self.cleanup.wake_at <= time.monotonic()

    def poll(self, stop: Stop) -> bool | None:
        """Publish the changes of one poll. Return True if there were any, None if ``stop`` was set before its end.

        Raises PollHeld where nothing may be published before an operator approves it.
        """
        before = self.reader.offset
        self.cleanup.begin_poll()
        self._adapt_offset()
        if self._comparison is None:
            self._comparison = topic_comparison(self._context.kafka, self.reader, before)
        is_empty = begins_empty(self._context.kafka, self.plan, self.reader.offset)
        sent, has_ended = self._publish_poll(stop, is_gated=not is_empty)
        if not has_ended:
            return None
        if is_empty:  # the topic has no keys of other tables that a sweep would have to find
            self._publish(RecordBatch([], replace(self.reader.offset, sweep=False)))
        if before.seen_snapshot is not None and self.reader.offset.sweep and not before.sweep:
            log.warning("the topic will be looked through for keys that the table lacks", table=self.name)
        self.cleanup.end_poll()
        self.schedule.record_success()
        self._context.board.record_poll(self.name, sent)
        return sent > 0

    def sweep(self, stop: Stop) -> bool:
        """Go a slice further with a sweep that is due. Return True if that removed anything."""
        self._stop = stop
        sent = self.cleanup.step()
        if sent:
            self._context.board.record_poll(self.name, sent)
        return sent > 0

    def resend(self, keys: list[bytes]) -> bool:
        """Send the rows of these keys again as they are now. Return True if any were sent."""
        offset = self._offset_record(self.reader.offset)
        resent = resend_rows(self._server, self._context.kafka, self.plan, self._guard, keys, offset)
        self.cleanup.sweeper.note(resent.records)
        log.info("rows sent again", table=self.name, keys=len(resent.records), left_alone=resent.left_alone)
        return bool(resent.records)

    def reset_reader(self) -> None:
        """Read on from the last row that was published; a sweep begins anew."""
        self.cleanup.close()
        self.reader = self.cleanup.reader = open_reader(self._server, self.plan, self.reader.offset)
        self._comparison = None

    def close(self) -> None:
        """Stop the sweep that goes on between polls."""
        self.cleanup.close()

    def _publish_poll(self, stop: Stop, *, is_gated: bool = True) -> tuple[int, bool]:
        """Publish one poll. Return the number of its records, and True if it came to its end.

        ``is_gated``: its removals and changes of values are checked.
        """
        guard = self._change_guard if is_gated and not is_first_load(self.reader.offset) else None
        if guard is None:
            return self._publish_pages(stop, is_gated=is_gated)
        guard.begin()
        is_counted = self.reader.offset.seen_snapshot is None and not isinstance(self.reader, CursorReader)
        sent, has_ended = self._publish_pages(stop, guard=guard, is_counted=is_counted)
        if has_ended or stop.is_set():
            return sent, has_ended
        sent_after_count, has_ended = self._publish_pages(stop, guard=guard, is_counted=True)
        return sent + sent_after_count, has_ended

    def _publish_pages(
        self, stop: Stop, *, is_gated: bool = True, guard: ChangeGuard | None = None, is_counted: bool = False
    ) -> tuple[int, bool]:
        """Publish the batches of a poll, up to one that the change guard does not let pass before the poll is counted.

        The reader selects rows, converts them and covers them with an offset. Here a batch is compared with the topic,
        its removals and changes are checked, and it is published.
        """
        sent = 0
        comparison = self._comparison
        expect = expectation(self.plan, comparison, guard if is_counted else None)
        with closing(self.reader.batches(self._page_rows, self._context.page_bytes, expect)) as batches:
            for page in batches:
                self._comparison = None  # until the batch is in the topic: it would leave the records out next time
                batch = page if comparison is None else comparison.without_known(page, self.plan)
                batch = self.cleanup.check(batch) if is_gated else batch
                if guard is not None:
                    guard.check(self.plan.topic)
                    if not guard.passes(batch, self.reader):
                        return sent, False
                if batch.skipped:
                    self._report(batch.skipped)
                self._publish(batch)
                self._comparison = comparison if self.reader.offset.phase is Phase.COMPARING else None
                if batch.load is not None:
                    self._context.board.record_load(self.name, batch.load)
                sent += len(batch.records)
                if stop.is_set():
                    return sent, False
        return sent, True

    def _catch_up(self) -> bool:
        sent, has_ended = self._publish_poll(self._stop)
        if sent:
            self._context.board.record_poll(self.name, sent)
        return has_ended

    def _adapt_offset(self) -> None:
        """Adapt the offset to the present partitions and keys. Raises PollHeld where an operator has to approve."""
        offset = self._growth.adapt(self.reader.offset)
        if self.plan.sweeps:
            if self._key_digest is None:
                facts = (self.plan.connector.soft_delete, self._context.publisher.partitioner)
                self._key_digest = self.plan.rows.key_digest(*facts)
            offset = offset.for_keys(self._key_digest)
        self.reader.acknowledge(RecordBatch([], offset, persist=False))

    def _report(self, skipped: Sequence[RowFailed]) -> None:
        """Count skipped rows, and log as many as the error settings of the connector demand."""
        errors = self._context.connector.errors
        is_first = self._context.board.count_skipped(self.name, len(skipped)) == 0
        most = _MOST_LOGGED if errors.log_each else int(is_first)
        for row in skipped[:most]:
            log.warning("row skipped", table=self.name, reason=row.log_text(name_rows=errors.name_rows))
        if len(skipped) > most:
            log.warning("rows skipped", table=self.name, count=len(skipped))

    def _publish(self, batch: RecordBatch) -> None:
        """Publish a batch with its offset in one Kafka transaction; the next poll goes on from that offset.

        Its tombstones are left to a sweep if the guard can't tell whether their rows live. Raises RowFailed where
        nothing sweeps the topic: the whole batch is due again then.
        """
        if batch.persist:
            published = 0 if self.plan.rows.routed else len(batch.records)
            offset = replace(batch.offset, topic_end=self._context.topics.known_ends[self.plan.topic] + published)
            size = sum([len(record[0] or b"") + len(record[1] or b"") for record in batch.records])
            began = time.monotonic()
            try:
                living = self._guard.publish(batch.records, (self._key, offset.dumps()), batch.removals)
            except RowError as error:
                if not self.cleanup.can_sweep:
                    reason = f"removals wait until the key of every row can be made: {error}"
                    raise RowFailed(reason) from error
                log.warning("a row's key is not known: removals are left to a sweep", table=self.name, why=str(error))
                self._publish(self.cleanup.leave_to_sweep(batch))
                return
            finally:
                self._context.page_bytes.adjust(size, time.monotonic() - began)
            self._advance_end(len(batch.records) - len(living))
            self.cleanup.sweeper.note(
                [record for record in batch.records if record[1] is not None or record[0] not in living]
            )
        self.reader.acknowledge(batch)
        if batch.resend_reason is not None and batch.records:
            log.warning("sent again", table=self.name, reason=batch.resend_reason.value, records=len(batch.records))
            self._context.board.count_resent(self.name, batch.resend_reason, len(batch.records))

    def _offset_record(self, offset: SourceOffset) -> tuple[bytes, bytes]:
        """Return the record of an offset that is published without records."""
        end = self._context.topics.known_ends[self.plan.topic]
        return self._key, replace(offset, topic_end=end).dumps()

    def _advance_end(self, records: int) -> None:
        if not self.plan.rows.routed:
            self._context.topics.known_ends[self.plan.topic] += max(0, records)

    def _home(self, key: bytes) -> int | None:
        return partition_by(key, self._partitions, self._context.publisher.partitioner)

    def _delete_copies(self, copies: Sequence[Copy], batch: RecordBatch) -> None:
        """Send tombstones to the partitions of these copies, and an offset with them."""
        living = self._guard.publish((), self._offset_record(batch.offset), copies=copies)
        self._advance_end(len(copies) - len(living))
        removed_keys = (copy.key for copy in copies if not copy.misplaced and copy.key not in living)
        self.cleanup.sweeper.note((key, None) for key in removed_keys)
        self.reader.acknowledge(batch)

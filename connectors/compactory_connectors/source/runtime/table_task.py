"""One table of a session: its reader, when it is due, what of its topic is known, and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from compactory.kafka.client import Kafka
from compactory_connectors.connect.record.record import RowError, RowFailed
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.kafka.producer_record import Copy
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import length

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Phase, ResendReason
from ..offsets.topics import TopicEnds
from ..planning.table_plan import TablePlan
from ..polling.cursor_reader import CursorReader
from ..polling.reader import Reader
from ..polling.record_batch import RecordBatch
from ..polling.removal import HeldRemoval, RemovalHeld
from ..postgres.chunk_reader import PAGE_ROWS, PageBytes
from ..postgres.server import Server
from ..removals.cleanup import TopicCleanup
from ..removals.pending_approval import PendingApproval
from ..removals.removal_guard import RemovalGuard
from ..removals.sweeper import Sweeper
from ..status.board import StatusBoard
from ..status.orders import Orders, Stop
from ..verify.comparison import MOST_COMPARED, Comparison
from .schedule import Schedule

if TYPE_CHECKING:
    from ..config.connector import ConnectorConfig

__all__ = ["SessionContext", "TableTask"]

log = structlog.get_logger("compactory.source")

_LOGGED = 20
"""Skipped rows of one page that are logged one by one, where that is asked for."""

_REPAIR = "every row is sent again, and misplaced records get tombstones"
_LEAVE = "new records go to their new partitions, and the former ones are left to you"
_ANEW = "with message.timestamp.type=LogAppendTime a tombstone would be the newest of its key: make the topic anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """Where a session's records go."""

    connector: ConnectorConfig
    kafka: Kafka
    publisher: Publisher
    board: StatusBoard
    create_topics: bool
    orders: Orders
    page_bytes: PageBytes
    ends: TopicEnds


@dataclass(slots=True, kw_only=True)
class TableTask:
    """A table that is polled. Owned by the session's thread."""

    context: SessionContext
    server: Server
    reader: Reader
    key: bytes
    plan: TablePlan = field(init=False)
    """The reader's plan."""
    others: list[str] = field(default_factory=list)
    """Other tables that are published to its topic."""
    schedule: Schedule = field(init=False)
    partitions: int = 1
    """Of its topics."""
    cleanup: TopicCleanup = field(init=False)
    guard: RemovalGuard = field(init=False)
    _comparison: Comparison | None = None  # with what its topic holds, while the offset says so
    _stop: Stop | None = None
    _grown: bool = False  # the topic was, and nothing may be sent before an operator approves it
    _keys: str | None = None

    def __post_init__(self) -> None:
        self.plan = self.reader.plan
        context, connector = self.context, self.context.connector
        self.schedule = Schedule(interval=connector.poll_interval_ms / 1000, attempts=connector.retry_attempts)
        self.guard = RemovalGuard(
            self.server, self.plan, context.publisher, partial(context.board.count_stopped_removals, self.name)
        )
        approval = PendingApproval(connector.name, self.name, context.orders, context.board)
        self.cleanup = TopicCleanup(
            reader=self.reader,
            server=self.server,
            sweeper=Sweeper(context.kafka, self.server, self.plan, self._home),
            approval=approval,
            percent=connector.max_removed_percent,
            page_rows=min(PAGE_ROWS, connector.batch_max_rows),
            interval=connector.sweep_interval_ms / 1000,
            others=self.others,
            catch_up=self._catch_up,
            send=self._delete_copies,
        )

    @property
    def name(self) -> str:
        """``schema.table`` for people."""
        return self.plan.qualified

    @property
    def remembered(self) -> int:
        """How many ids of transactions its offset has."""
        seen_snapshot = self.reader.offset.seen_snapshot
        return len(seen_snapshot.seen or ()) if seen_snapshot is not None else 0

    @property
    def sweeping(self) -> bool:
        """Whether a slice of a sweep is due; see :meth:`tend`."""
        return not (self.schedule.ailing or self._grown) and self.cleanup.wake_at <= time.monotonic()

    @property
    def wake_at(self) -> float:
        """When there is something to do, by the monotonic clock."""
        sweeps = not (self.schedule.ailing or self._grown)
        return min(self.schedule.due, self.cleanup.wake_at) if sweeps else self.schedule.due

    def go_on_with(self, reader: Reader) -> None:
        """Read with another reader from now on; a sweep begins anew."""
        self.cleanup.close()
        self.reader = self.cleanup.reader = reader
        self._comparison = None

    def drain(self, stop: Stop) -> bool | None:
        """Publish everything one poll finds; whether that was anything. None where ``stop`` was set before its end.

        Raises RemovalHeld where nothing may be published before an operator approves it.
        """
        before = self.reader.offset
        self.cleanup.begin()
        self._follow_topic()
        self._compare(before)
        empty = self._begins_empty()
        sent, ended = self._poll(stop, gated=not empty)
        if not ended:
            return None
        if empty:  # nobody else's keys were in it
            self._publish(RecordBatch([], replace(self.reader.offset, sweep=False)))
        if before.seen_snapshot is not None and self.reader.offset.sweep and not before.sweep:
            log.warning("the topic will be looked through for keys that the table lacks", table=self.name)
        self.cleanup.ended()
        self.schedule.ended()
        self.context.board.record_poll(self.name, sent)
        return sent > 0

    def tend(self, stop: Stop) -> bool:
        """Go a slice further with a sweep that is due; whether that removed anything."""
        self._stop = stop
        sent = self.cleanup.tend()
        if sent:
            self.context.board.record_poll(self.name, sent)
        return sent > 0

    def _poll(self, stop: Stop, *, gated: bool = True) -> tuple[int, bool]:
        """Publish the batches of one poll; how many records they had, and whether it was all of them.

        The reader selects rows, converts them and covers them with an offset; here a batch is compared with the topic,
        its removals are checked, and it is published.
        """
        sent = 0
        rows = min(PAGE_ROWS, self.context.connector.batch_max_rows)
        comparison = self._comparison
        expect = comparison.expect if comparison is not None else None
        with closing(self.reader.batches(rows, self.context.page_bytes, expect)) as pages:
            for found in pages:
                self._comparison = None  # until the batch is in the topic: of one that is not, it would say that it is
                batch = found if comparison is None else comparison.without_known(found, self.plan)
                batch = self.cleanup.check(batch) if gated else batch
                if batch.skipped:
                    self._report(batch.skipped)
                self._publish(batch)
                self._comparison = comparison if self.reader.offset.phase is Phase.COMPARING else None
                if batch.load is not None:
                    self.context.board.record_load(self.name, batch.load)
                sent += len(batch.records)
                if stop.is_set():
                    return sent, False
        return sent, True

    def _catch_up(self) -> bool:
        assert self._stop is not None
        sent, ended = self._poll(self._stop)
        if sent:
            self.context.board.record_poll(self.name, sent)
        return ended

    def _begins_empty(self) -> bool:
        """Whether a first load begins on a topic that never had a record."""
        offset = self.reader.offset
        if offset.phase is not Phase.LOADING or offset.partial_polls or not offset.sweep:
            return False
        found = self.context.kafka.topics([self.plan.topic]).get(self.plan.topic)
        return found is not None and not any(self.context.kafka.high_watermarks(found.all()).values())

    def _follow_topic(self) -> None:
        """Adapt the offset to the partitions and keys of now. Raises RemovalHeld where an operator has to approve."""
        offset = self._with_partitions(self.reader.offset)
        if self.plan.sweeps:
            facts = (self.plan.connector.soft_delete, self.context.publisher.partitioner)
            self._keys = self._keys or self.plan.rows.key_digest(*facts)
            offset = offset.for_keys(self._keys)
        self.reader.acknowledge(RecordBatch([], offset, persist=False))

    def _with_partitions(self, offset: SourceOffset) -> SourceOffset:
        """Guarantee 10: the offset with the partitions of now. If it had another number, an operator has to approve."""
        known, now = offset.partition_count, self.partitions
        self._grown = known is not None and known != now and not self.plan.keyless
        if known is not None and self._grown:
            self._demand_approval(known, now)
            self._grown = False
            if self.plan.sweeps:
                # not compared: a record that the topic has may belong in another partition now
                offset = offset.restarted(ResendReason.SPREAD).without_comparison()
        return replace(offset, partition_count=now)

    def _demand_approval(self, known: int, now: int) -> None:
        """Raise RemovalHeld until an operator has approved the new number of partitions."""
        topic, approval = self.plan.topic, self.cleanup.approval
        grown = (
            f"topic {topic!r} has {now} partitions and had {known}: keys belong elsewhere now, and what they"
            " have in their former partitions would stay there"
        )
        growth = HeldRemoval(id=f"partitions-{known}-{now}", removed=0, keys=0)
        config = self.context.kafka.topic_configs([topic]).get(topic, {})
        if config.get("message.timestamp.type") == "LogAppendTime":
            approval.doubt(why := f"{grown}; {_ANEW}")
            raise RemovalHeld(growth, why)
        approval.refuse(growth, f"{grown}; approved, {_REPAIR if self.plan.sweeps else _LEAVE}")
        approval.release()

    def failed(self, detail: str, logged: str | None = None) -> None:
        """A poll failed: try again after a pause, unless that was tried often enough. ``logged``: what logs may say."""
        if not self.schedule.failed(time.monotonic()):
            detail = f"{detail}; given up after {self.schedule.failures} attempts, as query.retry.attempts says"
        log.error("table failed", table=self.name, detail=logged or detail)
        self.context.board.record_failure(self.name, detail)

    def locked(self, holders: list[str]) -> None:
        """Somebody has locked the table: try again soon, without keeping the others waiting."""
        self.schedule.found_locked(time.monotonic())
        by = "; ".join(holders) or "a transaction that has ended meanwhile"
        detail = f"{self.plan.label} is locked by {by}; tried again by itself"
        self.context.board.record_locked(self.name, detail)

    def _compare(self, offset: SourceOffset) -> None:
        """Leave out what the topic has, where the offset says so.

        After a crash every row goes out where the topic is large: a comparison's memory would not be there for it, and
        a source that the system ends for its memory would begin again and again.
        """
        if offset.phase is not Phase.COMPARING or self._comparison is not None:
            return
        if isinstance(self.reader, CursorReader) or self.plan.rows.routed:
            return
        records = length(self.context.kafka, self.plan.topic) if offset.resend_reason else 0
        if records > MOST_COMPARED:
            log.warning("too large to be compared: every row is sent", table=self.name, records=records)
            return
        self._comparison = Comparison.with_topic(self.context.kafka, self.plan.topic)

    def _report(self, skipped: Sequence[RowFailed]) -> None:
        """Count skipped rows, and log as many as the error settings of the connector demand."""
        errors = self.context.connector.errors
        first = not self.context.board.count_skipped(self.name, len(skipped))
        shown = skipped[: _LOGGED if errors.log_each else int(first)]
        for row in shown:
            log.warning("row skipped", table=self.name, reason=row.log_text(name_rows=errors.name_rows))
        if len(skipped) > len(shown):
            log.warning("rows skipped", table=self.name, count=len(skipped))

    def _publish(self, batch: RecordBatch) -> None:
        """Publish a batch with its offset in one Kafka transaction; the next poll goes on from that offset.

        Its tombstones are left to a sweep if the guard can't tell whether their rows live. Raises RowFailed where
        nothing sweeps the topic: the whole batch is due again then.
        """
        if batch.persist:
            size = sum([len(record[0] or b"") + len(record[1] or b"") for record in batch.records])
            began = time.monotonic()
            try:
                stored = self.stored(batch.offset, len(batch.records))
                living = self.guard.publish(batch.records, stored, batch.removals)
            except RowError as error:
                if not self.cleanup.sweepable:
                    reason = f"removals wait until the key of every row can be made: {error}"
                    raise RowFailed(reason) from error
                why = "the key of a row is not known: removals are left to a sweep"
                log.warning(why, table=self.name, why=str(error))
                self._publish(self.cleanup.leave_to_sweep(batch))
                return
            finally:
                self.context.page_bytes.adjust(size, time.monotonic() - began)
            self.wrote(len(batch.records) - len(living))
            self.cleanup.sweeper.note([each for each in batch.records if each[1] is not None or each[0] not in living])
        self.reader.acknowledge(batch)
        if batch.resend_reason is not None and batch.records:
            log.warning("sent again", table=self.name, reason=batch.resend_reason.value, records=len(batch.records))
            self.context.board.count_resent(self.name, batch.resend_reason, len(batch.records))

    def stored(self, offset: SourceOffset, records: int) -> tuple[bytes, bytes]:
        """The record of an offset that is published with so many records."""
        end = self.context.ends.passed[self.plan.topic] + (0 if self.plan.rows.routed else records)
        return self.key, replace(offset, topic_end=end).dumps()

    def wrote(self, records: int) -> None:
        """So many records are in the table's topics."""
        if not self.plan.rows.routed:
            self.context.ends.passed[self.plan.topic] += max(0, records)

    def _home(self, key: bytes) -> int | None:
        return partition_by(key, self.partitions, self.context.publisher.partitioner)

    def _delete_copies(self, copies: Sequence[Copy], batch: RecordBatch) -> None:
        """Send tombstones to where these copies are, and an offset with them."""
        living = self.guard.publish((), self.stored(batch.offset, 0), copies=copies)
        self.wrote(len(copies) - len(living))
        gone = (copy.key for copy in copies if not copy.misplaced and copy.key not in living)
        self.cleanup.sweeper.note((key, None) for key in gone)
        self.reader.acknowledge(batch)

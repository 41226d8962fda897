"""Which of a session's tables to poll now, and how long the source may wait.

A table is polled when it is due and may have changed: one of its writers has notified, or a check of the server does
not say otherwise. One check asks about all tables that are due, so that those that do not change cost next to nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.wakeup import Wakeup
from compactory_sql import WAKEUP_CHANNEL, WAKEUP_LOCK_CLASS

from ..planning.table_plan import Reading
from ..polling.change_detector import ChangeDetector
from ..polling.cursor_reader import CursorReader
from ..postgres.server import Server
from ..status.orders import Orders, Stop
from .table_registry import TableRegistry
from .table_task import TableTask

__all__ = ["DueTables", "Scheduler"]

log = structlog.get_logger("compactory.source")

_BUSY = 8  # notifications in a row that came while their table was polled, after which its writers need not notify
_STOP_INTERVAL = 0.25  # seconds after which a wait notices that the source should stop
_FEW = 2  # due tables, up to which each is checked by itself
_LONG = 1 << 20  # transactions since a table's last poll, after which it is polled in any case
_QUEUE_FULL, _QUEUE_FREE = 0.5, 0.25  # usage of the queue of NOTIFY: from full until free nobody is asked to notify


@dataclass(frozen=True, slots=True)
class DueTables:
    """The tables to poll now, and those that have nothing new at ``checked_at`` (seconds since 1970)."""

    to_poll: list[TableTask]
    unchanged: list[TableTask]
    checked_at: float


class Scheduler:
    """Owned by the session's thread. Raises psycopg.Error."""

    def __init__(self, server: Server, registry: TableRegistry, orders: Orders) -> None:
        self._registry = registry
        self._orders = orders
        self._wakeup = Wakeup(server.connection, WAKEUP_CHANNEL, (WAKEUP_LOCK_CLASS, 0), listen=False)
        self._notified: set[str] = set()
        self._detector = ChangeDetector(server)
        self._streaks: Counter[int] = Counter()
        self._is_queue_full = False

    def close(self) -> None:
        self._wakeup.close()

    def due_tables(self) -> DueTables:
        self._receive_notifications()
        at, checked_at = time.monotonic(), time.time()
        to_check: list[TableTask] = []
        to_poll: list[TableTask] = []
        for table in self._registry:
            if table.schedule.due <= at or self._orders.needs_poll(table.name):
                (to_check if self._can_check(table) else to_poll).append(table)
        if to_check:
            self._check(to_check, at)
        unchanged = [table for table in to_check if table.schedule.is_current]
        for table in unchanged:
            table.schedule.record_no_changes(at, is_notifying=self._is_asleep(table))
        to_poll += [table for table in to_check if not table.schedule.is_current]
        for table in to_poll:
            table.schedule.is_current = False
            table.schedule.due = at + table.schedule.interval
        return DueTables(to_poll, unchanged, checked_at)

    def record_poll(self, table: TableTask, *, has_published: bool) -> None:
        """Set the next check of a table that was polled to its end."""
        at, schedule = time.monotonic(), table.schedule
        schedule.is_current = True
        is_settled, is_asleep = table.reader.is_durable, self._is_asleep(table)
        if not has_published and table.plan.reading is not Reading.WHOLE:
            schedule.record_no_changes(at, is_notifying=is_asleep, is_settled=is_settled)
        elif table.plan.notifies and not is_asleep:
            schedule.due = at
        else:
            schedule.record_changes(at, is_settled=is_settled)

    def wait(self, stop: Stop, until: float) -> None:
        """Wait until a writer notifies, something is due, it is ``until``, an order comes or ``stop`` is set."""
        self._sleep()
        self._streaks.clear()
        at = time.monotonic()
        until = min([until, *(awake for table in self._registry if (awake := table.schedule.awake_until) > at)])
        while not stop.is_set() and not self._orders.changed.is_set():
            remaining = min(self._registry.due, until) - time.monotonic()
            if remaining <= 0:
                return
            if notified := self._wakeup.wait(min(remaining, _STOP_INTERVAL)):
                self._notified |= notified
                return

    def _is_asleep(self, table: TableTask) -> bool:
        return table.plan.oid in self._wakeup.keys

    def _receive_notifications(self) -> None:
        """Make tables due whose writers notified. Wake those whose writers notify faster than they are polled."""
        payloads, self._notified = self._notified | self._wakeup.wait(0), set()
        oids = {int(payload) for payload in payloads if payload.isdecimal()}
        if not oids:
            return
        at = time.monotonic()
        for table in self._registry:
            if table.plan.oid in oids:
                table.schedule.is_current = False
                if not table.schedule.is_failing:
                    table.schedule.due = at
                self._streaks[table.plan.oid] += 1
        self._wake([oid for oid in oids if self._streaks[oid] > _BUSY])

    def _wake(self, oids: Iterable[int]) -> None:
        oids = list(oids)
        self._wakeup.wake(oids)
        for oid in oids:
            del self._streaks[oid]

    def _can_check(self, table: TableTask) -> bool:
        """Return True if a check can show that there is nothing to poll."""
        needs_poll = table.schedule.is_failing or self._orders.needs_poll(table.name)
        return _has_versions(table) and table.schedule.is_current and table.reader.is_durable and not needs_poll

    def _check(self, tables: list[TableTask], at: float) -> None:
        """Find out which tables may have changed; those are not current any more."""
        if len(tables) > _FEW:
            candidates = [table for table in self._registry if _has_versions(table) and not table.schedule.is_failing]
            observation = self._detector.probe([table.plan for table in candidates])
            changed = [table for table in candidates if table.plan.oid in observation.suspects]
        else:
            observation, changed = self._detector.observe(), []
            if not self._detector.is_last_snapshot(observation.snapshot):
                changed = [table for table in tables if not table.reader.is_idle(observation.snapshot)]
        changed += [table for table in tables if _is_long_ago(table, observation.snapshot)]
        for table in changed:
            table.schedule.poll_now(at)
        self._check_queue(observation.queue_usage)

    def _check_queue(self, queue_usage: float) -> None:
        """Ask nobody to notify while the queue of notifications is full."""
        is_full = queue_usage > (_QUEUE_FREE if self._is_queue_full else _QUEUE_FULL)
        if is_full and not self._is_queue_full:
            detail = "a session that listens stays in a transaction; tables are polled until the queue is emptier"
            log.error("queue of notifications fills", usage=round(queue_usage, 2), detail=detail)
            self._wake(self._wakeup.keys.copy())
        self._is_queue_full = is_full

    def _sleep(self) -> None:
        """Ask writers to notify where there is nothing to do now. A table that changed meanwhile is due."""
        at = time.monotonic()
        tables = {table.plan.oid: table for table in self._registry if table.plan.notifies}
        self._wakeup.wake(self._wakeup.keys - tables.keys())
        candidates = {oid: table for oid, table in tables.items() if self._may_sleep(table, at)}
        if not candidates or self._is_queue_full:
            return
        slept = self._wakeup.sleep_for(candidates)
        for oid, table in candidates.items():
            if oid not in slept.asleep | slept.shared:
                table.schedule.delay_sleep(at)
                continue
            table.schedule.record_sleep(at, is_shared=oid in slept.shared)
            if not table.reader.is_idle(slept.snapshot):
                table.schedule.due = at

    def _may_sleep(self, table: TableTask, at: float) -> bool:
        schedule = table.schedule
        is_due = schedule.due <= at or at < schedule.awake_until
        return schedule.is_current and not schedule.is_failing and not is_due and not self._is_asleep(table)


def _is_long_ago(table: TableTask, snapshot: Snapshot) -> bool:
    """Return True if the last poll is many transactions ago: their ids are compared in 32 bits."""
    seen_snapshot = table.reader.offset.seen_snapshot
    return seen_snapshot is not None and snapshot.xmax - seen_snapshot.snapshot.xmax > _LONG


def _has_versions(table: TableTask) -> bool:
    """Return True if every change of the table shows in its row versions."""
    return not isinstance(table.reader, CursorReader) and table.plan.reading is not Reading.WHOLE

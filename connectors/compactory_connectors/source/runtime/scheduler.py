"""Which of a session's tables to look at now, and how long the source may rest.

A table is polled when it is due and may have changed: a writer of it has notified, or a look at the server does not say
otherwise. One look asks about all tables that are due, so that those that do not change cost next to nothing.
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
from ..polling.change_detector import ChangeDetector, Observation
from ..polling.cursor_reader import CursorReader
from ..postgres.server import Server
from ..status.orders import Orders, Stop
from .schedule import BUSY
from .table_registry import TableRegistry
from .table_task import TableTask

__all__ = ["Scheduler", "Turn"]

log = structlog.get_logger("compactory.source")

_SLICE = 0.25  # seconds; how long a wait may take to notice that the source should stop
_FEW = 2  # tables that are polled rather than asked about
_LONG = 1 << 20  # transactions since a table's last poll, after which it is polled in any case
_CROWDED = (0.5, 0.25)  # of the queue of NOTIFY: so full, nobody is asked to notify until it is emptier


@dataclass(frozen=True, slots=True)
class Turn:
    """The tables to poll now, and those that are known to have nothing new at ``looked_at`` (seconds since 1970)."""

    poll: list[TableTask]
    unchanged: list[TableTask]
    looked_at: float


class Scheduler:
    """Owned by the session's thread. Raises psycopg.Error."""

    def __init__(self, server: Server, registry: TableRegistry, orders: Orders) -> None:
        self._registry = registry
        self._orders = orders
        self._wakeup = Wakeup(server.connection, WAKEUP_CHANNEL, (WAKEUP_LOCK_CLASS, 0), listen=False)
        self._notified: set[str] = set()
        self._detector = ChangeDetector(server)
        self._streaks: Counter[int] = Counter()
        self._crowded = False

    def close(self) -> None:
        """Close the sockets that wake it."""
        self._wakeup.close()

    def turn(self) -> Turn:
        """Decide which tables to poll now."""
        self._hear()
        now, looked_at = time.monotonic(), time.time()
        asked: list[TableTask] = []
        poll: list[TableTask] = []
        for table in self._registry:
            if table.schedule.due <= now or self._orders.needs_poll(table.name):
                (asked if self._may_be_asked(table) else poll).append(table)
        if asked:
            self._look(asked, now)
        unchanged = [table for table in asked if table.schedule.fresh]
        for table in unchanged:
            table.schedule.quiet(now, notifying=self._asleep(table))
        poll += [table for table in asked if not table.schedule.fresh]
        for table in poll:
            table.schedule.fresh = False
            table.schedule.due = now + table.schedule.interval
        return Turn(poll, unchanged, looked_at)

    def polled(self, table: TableTask, published: bool) -> None:
        """A table was polled to its end."""
        now, schedule = time.monotonic(), table.schedule
        schedule.fresh = True
        settled, asleep = table.reader.settled, self._asleep(table)
        if not published and table.plan.reading is not Reading.WHOLE:
            schedule.quiet(now, notifying=asleep, settled=settled)
        elif table.plan.notifies and not asleep:
            schedule.due = now
        else:
            schedule.found(now, settled=settled)

    def rest(self, stop: Stop, until: float) -> None:
        """Wait until a writer notifies, something is due, it is ``until``, an order comes or ``stop`` is set."""
        self._fall_asleep()
        self._streaks.clear()
        until = min([until, *self._attempts()])
        while not stop.is_set() and not self._orders.changed.is_set():
            left = min(self._registry.due, until) - time.monotonic()
            if left <= 0:
                return
            if notified := self._wakeup.wait(min(left, _SLICE)):
                self._notified |= notified
                return

    def _asleep(self, table: TableTask) -> bool:
        return table.plan.oid in self._wakeup.keys

    def _hear(self) -> None:
        """Tables whose writers notified are due; where they notify faster than we poll, they need not any more."""
        payloads, self._notified = self._notified | self._wakeup.wait(0), set()
        notified = {int(payload) for payload in payloads if payload.isdecimal()}
        if not notified:
            return
        now = time.monotonic()
        busy = []
        for table in self._registry:
            oid = table.plan.oid
            if oid not in notified:
                continue
            table.schedule.fresh = False
            if not table.schedule.ailing:
                table.schedule.due = now
            self._streaks[oid] += 1
            if self._streaks[oid] > BUSY:
                busy.append(oid)
        self._awaken(busy)

    def _awaken(self, oids: Iterable[int]) -> None:
        oids = list(oids)
        self._wakeup.wake(oids)
        for oid in oids:
            del self._streaks[oid]

    def _may_be_asked(self, table: TableTask) -> bool:
        """Whether a look can say that there is nothing to poll."""
        wanted = table.schedule.ailing or self._orders.needs_poll(table.name)
        return _versioned(table) and table.schedule.fresh and table.reader.settled and not wanted

    def _look(self, asked: list[TableTask], now: float) -> None:
        """Find out which tables may have changed; those are not fresh any more."""
        if len(asked) > _FEW:
            known = [table for table in self._registry if _versioned(table) and not table.schedule.ailing]
            observation = self._detector.look([table.plan for table in known])
            suspects = [table for table in known if table.plan.oid in observation.suspects]
        else:
            observation = self._detector.observation()
            still = self._detector.unchanged(observation.snapshot)
            suspects = [] if still else [table for table in asked if not table.reader.is_idle(observation.snapshot)]
        suspects += [table for table in asked if _lags(table, observation.snapshot)]
        for table in suspects:
            table.schedule.at_once(now)
        self._mind(observation, now)

    def _mind(self, observation: Observation, now: float) -> None:
        """See to it that notifications come, and that they harm nobody."""
        if self._wakeup.listening and not observation.listening:
            log.error(
                "listener lost", detail="the connection did not listen any more; tables are polled and it does again"
            )
            self._wakeup.listen()
            for table in self._registry:
                if self._asleep(table):
                    table.schedule.at_once(now)
        crowded = observation.queue > _CROWDED[self._crowded]
        if crowded and not self._crowded:
            detail = "a session that listens stays in a transaction; tables are polled until the queue is emptier"
            log.error("queue of notifications fills", usage=round(observation.queue, 2), detail=detail)
            self._awaken(self._wakeup.keys.copy())
        self._crowded = crowded

    def _fall_asleep(self) -> None:
        """Have writers notify where there is nothing to do now; where there is after all, the table is due."""
        now = time.monotonic()
        tables = {table.plan.oid: table for table in self._registry if table.plan.notifies}
        self._wakeup.wake(self._wakeup.keys - tables.keys())
        sleepy = {oid: table for oid, table in tables.items() if self._may_sleep(table, now)}
        if not sleepy or self._crowded:
            return
        slept = self._wakeup.sleep_for(sleepy)
        for oid, table in sleepy.items():
            if oid not in slept.asleep | slept.shared:
                table.schedule.blocked(now)
                continue
            table.schedule.slept()
            if oid in slept.shared:
                table.schedule.relies(now)
            if not table.reader.is_idle(slept.snapshot):
                table.schedule.due = now

    def _attempts(self) -> list[float]:
        """When to try to sleep again for tables that rely on another source's sleep."""
        now = time.monotonic()
        return [table.schedule.awake_until for table in self._registry if table.schedule.awake_until > now]

    def _may_sleep(self, table: TableTask, now: float) -> bool:
        waits = table.schedule.ailing or table.schedule.due <= now or now < table.schedule.awake_until
        return table.schedule.fresh and not waits and not self._asleep(table)


def _lags(table: TableTask, snapshot: Snapshot) -> bool:
    """Whether so much time has passed since the last poll that it should be one again: xids are compared in 32 bits."""
    seen_snapshot = table.reader.offset.seen_snapshot
    return seen_snapshot is not None and snapshot.xmax - seen_snapshot.snapshot.xmax > _LONG


def _versioned(table: TableTask) -> bool:
    """Whether every change of the table shows in its row versions."""
    return not isinstance(table.reader, CursorReader) and table.plan.reading is not Reading.WHOLE

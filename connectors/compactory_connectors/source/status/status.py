"""The status of a source for people, probes and metrics. Thread-safe: written by the source, read by anyone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import structlog

from ..offsets.phase import ResendReason
from ..offsets.target_state import TargetState
from ..polling.load_progress import Load
from ..polling.removal import HeldRemoval
from ..postgres.transactions import OpenTransaction

__all__ = ["BeatStatus", "LeaseStatus", "SourceState", "SourceStatus", "StatusBoard", "TableStatus"]

log = structlog.get_logger("compactory.source")

_TELL_EVERY = 5.0  # seconds between two lines about a load


class SourceState(Enum):
    """States of a connector and of its tables, named as in Kafka Connect if it has the state.

    Only tables can be HELD; a table of a connector that does not run is shown in the connector's state.
    """

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"  # an operator said so; nothing is polled until one says otherwise
    STANDBY = "STANDBY"  # another process publishes; this one takes over when that one is gone
    WAITING = "WAITING"  # Postgres or Kafka is away; the source tries again by itself
    HELD = "HELD"  # a removal of too many keys, or too long a list of open transactions, waits for an operator
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    def may_become(self, state: SourceState) -> bool:
        """Whether a connector may change from this state to the given one; after a pause it opens a session first."""
        if SourceState.HELD in {self, state} or self is SourceState.STOPPED:
            return False
        return (self, state) != (SourceState.PAUSED, SourceState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """Counters since the process began; times in seconds since 1970."""

    table: str
    topic: str
    state: SourceState = SourceState.STARTING
    adopted: bool = False
    reading: str = ""
    """How new rows are found, in words."""
    covered: bool = True
    """No committed change is missed (guarantee 8)."""
    load: Load | None = None
    """How far a load is while one goes on."""
    rows_total: int = 0
    skipped_total: int = 0
    stopped_total: int = 0
    """Removals that were not published, for they were of living rows."""
    resent: Mapping[str, int] = field(default_factory=dict)
    """Records of polls that began behind what had been sent, by reason; see ``ResendReason``."""
    polls_total: int = 0
    errors_total: int = 0
    last_poll: float | None = None
    last_publish: float | None = None
    current_at: float | None = None  # everything committed before then is in the topic
    remembered: int = 0
    """Ids of visible transactions behind an open one, which a table left as it is has to remember."""
    held_since: float | None = None
    removal: HeldRemoval | None = None
    """The removal that waits for an approval."""
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """The lease when it was last heard of."""

    held: bool
    kind: str | None
    """``lease_table``, ``advisory_lock``, or None before a database was reached."""
    lacks: str | None = None
    """A danger that this kind does not protect from, and the remedy."""
    holder: str | None = None
    """Another process that has it."""
    epoch: int | None = None
    """How often a row has changed hands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatStatus:
    """The last heartbeat that Kafka has acknowledged."""

    committed_at: float
    """In Postgres, by its clock."""
    seconds: float
    """From the commit to the acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The status of one connector at one moment."""

    connector: str
    state: SourceState
    detail: str | None
    tables: tuple[TableStatus, ...]
    warnings: tuple[str, ...] = ()
    open_transaction: OpenTransaction | None = None
    """The one at the floor of every snapshot, where it has been open for long."""
    lease: LeaseStatus | None = None
    since: float | None = None  # when it came into this state
    target_state: TargetState = field(default_factory=TargetState)
    target_state_stored: bool = False
    heartbeat: BeatStatus | None = None

    def shown(self, table: TableStatus) -> SourceState:
        """The state of a table for people: a connector that does not run polls none."""
        return table.state if self.state is SourceState.RUNNING else self.state


class StatusBoard:
    """Holds the status. One thread writes about tables; the lock guards everything."""

    def __init__(self, connector: str) -> None:
        self._lock = threading.Lock()
        self._status = SourceStatus(
            connector=connector, state=SourceState.STARTING, detail=None, tables=(), since=time.time()
        )
        self._tables: dict[str, TableStatus] = {}
        self._warned: dict[str, None] = {}
        self._waiting: set[str] = set()
        self._told: dict[str, float] = {}  # when the log last told of a load, by the monotonic clock

    def picture(self) -> SourceStatus:
        """The state now."""
        with self._lock:
            return replace(self._status, tables=tuple(self._tables.values()), warnings=tuple(self._warned))

    def connector(self, state: SourceState, detail: str | None = None) -> None:
        """Record the connector's state."""
        since = self._status.since if state is self._status.state else time.time()
        self._set(state=state, detail=detail, since=since)

    def lease(self, status: LeaseStatus) -> None:
        """Record the state of the lease."""
        self._set(lease=status)

    def beaten(self, committed_at: float, seconds: float) -> None:
        """Record a heartbeat that Kafka has acknowledged."""
        self._set(heartbeat=BeatStatus(committed_at=committed_at, seconds=seconds))

    def floor(self, holder: OpenTransaction | None) -> None:
        """Record which transaction has been open for long, or that none has."""
        known = self._status.open_transaction
        self._set(open_transaction=holder)
        if holder is not None and (known is None or known.xid != holder.xid):
            log.warning("a transaction stays open", connector=self._status.connector, transaction=str(holder))

    def stands_by(self, detail: str) -> None:
        """Record that somebody else publishes."""
        self.connector(SourceState.STANDBY, detail)
        for table in [*self._tables]:
            self._update(table, state=SourceState.STANDBY, detail=None)

    def warn(self, *texts: str) -> None:
        """Show these texts to operators, and log each once a process."""
        with self._lock:
            fresh = [text for text in texts if text not in self._warned]
            self._warned.update(dict.fromkeys(fresh))
        for text in fresh:
            log.warning(text, connector=self._status.connector)

    def table(self, table: str, topic: str, *, adopted: bool, reading: str = "", covered: bool = True) -> None:
        """Announce a table of a new session; its counters go on."""
        facts: dict[str, Any] = {"topic": topic, "adopted": adopted, "reading": reading, "covered": covered}
        self._update(table, **facts, state=SourceState.STARTING, load=None, detail=None)

    def unfit(self, table: str, detail: str) -> None:
        """Show a table that can't be polled, or not any more."""
        self._update(table, state=SourceState.FAILED, detail=detail)

    def gone(self, table: str) -> None:
        """Forget a table that the connector polls no more."""
        with self._lock:
            self._tables.pop(table, None)

    def only(self, tables: Iterable[str]) -> None:
        """Forget tables of an earlier session that are not among these."""
        for name in self._tables.keys() - set(tables):
            self.gone(name)

    def table_failed(self, table: str, detail: str) -> None:
        """Count an error against one table: it waits for its next attempt, the others go on."""
        self._update(table, {"errors_total": 1}, state=SourceState.FAILED, detail=detail)

    def table_waits(self, table: str, detail: str) -> None:
        """Record that a table can't be read for now, and will be by itself."""
        known = self._update(table, state=SourceState.WAITING, detail=detail)
        if known.state is not SourceState.WAITING:
            log.warning("table waits", connector=self._status.connector, table=table, detail=detail)

    def skipped(self, table: str, rows: int) -> int:
        """Count rows that could not be converted; how many there were before."""
        return self._update(table, {"skipped_total": rows}).skipped_total

    def stopped(self, table: str, keys: int) -> None:
        """Count removals that were not published, for a living row has their key."""
        self._update(table, {"stopped_total": keys})
        log.error("removals of living rows stopped", connector=self._status.connector, table=table, keys=keys)

    def resent(self, table: str, why: ResendReason, records: int) -> None:
        """Count records that may have been sent before."""
        known = self._tables[table].resent
        self._update(table, resent={**known, why.value: known.get(why.value, 0) + records})

    def polled(self, table: str, rows: int) -> None:
        """Count a finished poll and the records it sent."""
        now = time.time()
        changes: dict[str, Any] = {"last_poll": now, "load": None}
        if self._tables[table].state is not SourceState.HELD:
            changes |= {"state": SourceState.RUNNING, "detail": None}
        if rows:
            changes["last_publish"] = now
        known = self._update(table, {"polls_total": 1, "rows_total": rows}, **changes)
        told = self._told.pop(table, None) is not None
        if told and known.load is not None and (known.load.seconds >= _TELL_EVERY or not known.polls_total):
            log.info("loaded", table=table, records=rows, load=str(known.load))

    def loading(self, table: str, load: Load) -> None:
        """Record how far a load is; it is told of in the log now and then."""
        self._update(table, load=load)
        now = time.monotonic()
        if now - self._told.get(table, 0.0) < _TELL_EVERY:
            return
        self._told[table] = now
        if load.seconds >= _TELL_EVERY:
            log.info("loading", table=table, load=str(load))

    def remembers(self, table: str, ids: int) -> None:
        """Record how many ids of transactions have to be remembered."""
        self._update(table, remembered=ids)

    def current(self, table: str, at: float) -> None:
        """Record that everything committed before ``at`` is published."""
        self._update(table, current_at=at)

    def waits(self, table: str, detail: str) -> None:
        """Record that a table waits for an open transaction."""
        self.held(table, detail)
        self._waiting.add(table)

    def resumed(self, table: str) -> None:
        """Record that a table waits no more, if it did."""
        if table in self._waiting:
            self._waiting.discard(table)
            self.held(table, None)

    def held(self, table: str, detail: str | None, removal: HeldRemoval | None = None) -> None:
        """Record that something of this table waits for an operator, or with None that it no longer does."""
        state = SourceState.RUNNING if detail is None else SourceState.HELD
        since = None if detail is None else self._tables[table].held_since or time.time()
        self._update(table, state=state, detail=detail, held_since=since, removal=removal)

    def failed(self, detail: str) -> None:
        """Count an error against every table of the session that just ended."""
        for table in [*self._tables]:
            self._update(table, {"errors_total": 1}, detail=detail)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)

    def _update(self, table: str, counts: Mapping[str, int] | None = None, **changes: Any) -> TableStatus:
        """Change the status of a table and add to its counters; return the one before."""
        with self._lock:
            known = self._tables.get(table) or TableStatus(table=table, topic="")
            added = {name: getattr(known, name) + count for name, count in (counts or {}).items()}
            self._tables[table] = replace(known, **added, **changes)
            return known

"""The board on which a running source keeps its status: written by the source, read by any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from ..offsets.offset_parts import ResendReason
from ..planning.table_plan import Reading
from ..polling.reader import Load
from ..polling.removal import Hold
from ..postgres.transactions import OpenTransaction
from .status import HeartbeatStatus, LeaseStatus, SourceState, SourceStatus, TableStatus

__all__ = ["StatusBoard"]

log = structlog.get_logger("compactory.source")

_LOAD_LOG_INTERVAL = 5.0  # seconds between two log lines about a load


class StatusBoard:
    """Holds the status of a connector. Thread-safe; one thread writes about tables."""

    def __init__(self, connector: str) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._status = SourceStatus(connector=connector, since=time.time())
        self._tables: dict[str, TableStatus] = {}
        self._warnings: dict[str, None] = {}
        self._load_logged: dict[str, float] = {}  # when a load was logged last, by the monotonic clock

    def picture(self) -> SourceStatus:
        with self._lock:
            return replace(self._status, tables=tuple(self._tables.values()), warnings=tuple(self._warnings))

    def set_state(self, state: SourceState, detail: str | None = None) -> None:
        since = self._status.since if state is self._status.state else time.time()
        self._set(state=state, detail=detail, since=since)

    def set_standby(self, detail: str) -> None:
        """Set the connector and its tables to STANDBY: another process publishes."""
        self.set_state(SourceState.STANDBY, detail)
        for table in [*self._tables]:
            self._update(table, state=SourceState.STANDBY, detail=None)

    def set_lease(self, status: LeaseStatus) -> None:
        self._set(lease=status)

    def record_heartbeat(self, committed_at: float, seconds: float) -> None:
        """Record a heartbeat that Kafka has acknowledged ``seconds`` after its commit."""
        self._set(heartbeat=HeartbeatStatus(committed_at=committed_at, seconds=seconds))

    def set_open_transaction(self, transaction: OpenTransaction | None) -> None:
        """Set the oldest transaction that has been open for long; log it once."""
        previous = self._status.open_transaction
        self._set(open_transaction=transaction)
        if transaction is not None and (previous is None or previous.xid != transaction.xid):
            log.warning("a transaction stays open", connector=self._status.connector, transaction=str(transaction))

    def warn(self, *texts: str) -> None:
        """Show these warnings to operators, and log each once a process."""
        with self._lock:
            new_texts = [text for text in texts if text not in self._warnings]
            self._warnings.update(dict.fromkeys(new_texts))
        for text in new_texts:
            log.warning(text, connector=self._status.connector)

    def add_table(self, table: str, topic: str, *, adopted: bool, reading: Reading | None = None) -> None:
        """Add a table of a new session: its counters go on, and what was held is found again."""
        if reading is not None:
            self._update(table, rows_found_by=reading.value, misses_late_commits=not reading.covered)
        self._update(table, topic=topic, adopted=adopted, load=None, held_since=None, removal=None)
        self._update(table, state=SourceState.STARTING, detail=None)

    def reject_table(self, table: str, detail: str) -> None:
        self._update(table, state=SourceState.FAILED, detail=detail)

    def remove_table(self, table: str) -> None:
        with self._lock:
            self._tables.pop(table, None)

    def retain_tables(self, tables: Iterable[str]) -> None:
        """Remove tables of an earlier session that are not among these."""
        for name in self._tables.keys() - set(tables):
            self.remove_table(name)

    def record_failure(self, table: str, detail: str) -> None:
        """Count an error of one table: it waits for its next attempt, the other tables go on."""
        self._update(table, {"errors_total": 1}, state=SourceState.FAILED, detail=detail)

    def record_session_failure(self, detail: str) -> None:
        """Count an error of every table of the session that just ended."""
        for table in [*self._tables]:
            self._update(table, {"errors_total": 1}, detail=detail)

    def record_locked(self, table: str, detail: str) -> None:
        """Show a table that can't be read while another transaction has locked it."""
        previous = self._update(table, state=SourceState.WAITING, detail=detail)
        if previous.state is not SourceState.WAITING:
            log.warning("table waits", connector=self._status.connector, table=table, detail=detail)

    def count_skipped(self, table: str, rows: int) -> int:
        """Count rows that could not be converted; return how many there were before."""
        return self._update(table, {"skipped_total": rows}).skipped_total

    def count_stopped_removals(self, table: str, keys: int) -> None:
        """Count removals that were not published, because a living row has their key."""
        self._update(table, {"removals_stopped_total": keys})
        log.error("removals of living rows stopped", connector=self._status.connector, table=table, keys=keys)

    def count_resent(self, table: str, reason: ResendReason, records: int) -> None:
        """Count records that may have been sent before."""
        counts = self._tables[table].resent
        self._update(table, resent={**counts, reason.value: counts.get(reason.value, 0) + records})

    def record_poll(self, table: str, rows: int) -> None:
        """Count a finished poll and the records that it sent."""
        at = time.time()
        changes: dict[str, Any] = {"last_poll": at, "load": None}
        if self._tables[table].state is not SourceState.HELD:
            changes |= {"state": SourceState.RUNNING, "detail": None}
        if rows:
            changes["last_publish"] = at
        previous = self._update(table, {"polls_total": 1, "rows_total": rows}, **changes)
        load, was_logged = previous.load, self._load_logged.pop(table, None) is not None
        if was_logged and load is not None and (load.seconds >= _LOAD_LOG_INTERVAL or not previous.polls_total):
            log.info("loaded", table=table, records=rows, load=str(load))

    def record_load(self, table: str, load: Load) -> None:
        """Record the progress of a load; log it now and then."""
        self._update(table, load=load)
        at = time.monotonic()
        if at - self._load_logged.get(table, 0.0) < _LOAD_LOG_INTERVAL:
            return
        self._load_logged[table] = at
        if load.seconds >= _LOAD_LOG_INTERVAL:
            log.info("loading", table=table, load=str(load))

    def set_remembered(self, table: str, transactions: int) -> None:
        self._update(table, remembered_transactions=transactions)

    def set_current(self, table: str, at: float) -> None:
        """Record that everything committed before ``at`` is published."""
        self._update(table, current_at=at)

    def hold(self, table: str, detail: str, removal: Hold | None = None) -> None:
        """Show a table of which a poll or a removal waits for an operator."""
        since = self._tables[table].held_since or time.time()
        self._update(table, state=SourceState.HELD, detail=detail, held_since=since, removal=removal)

    def release(self, table: str) -> None:
        """Show a table of which nothing waits for an operator any more."""
        self._update(table, state=SourceState.RUNNING, detail=None, held_since=None, removal=None)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)

    def _update(self, table: str, counts: Mapping[str, int] | None = None, **changes: Any) -> TableStatus:
        """Change the status of a table and add to its counters; return its previous status."""
        with self._lock:
            previous = self._tables.get(table) or TableStatus(table=table, topic="")
            sums = {name: getattr(previous, name) + count for name, count in (counts or {}).items()}
            self._tables[table] = replace(previous, **sums, **changes)
            return previous

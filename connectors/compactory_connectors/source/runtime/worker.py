"""Shows a source to probes, status pages and metrics, and hands operators' orders to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from compactory.errors import OrderRefused
from compactory.worker import Metric, Order, Verb

from ..postgres.transactions import OpenTransaction
from ..status.metrics import lag, source_metrics
from ..status.status import SourceState, SourceStatus, TableStatus
from .source import Source

__all__ = ["SourceWorker"]


class SourceWorker:
    """Implements `compactory.worker.Operated`. Thread-safe. ``alive`` says whether the source's thread still runs."""

    def __init__(self, source: Source, alive: Callable[[], bool]) -> None:
        self._source = source
        self._alive = alive
        self._began = time.time()
        self._ready = False

    @property
    def name(self) -> str:
        """``source`` and the connector's name."""
        return f"source {self._source.status().connector}"

    def live(self) -> bool:
        """Whether its thread runs, or is yet to be started; a source that waits for Postgres or Kafka is alive."""
        return self._alive() or self._source.status().state is SourceState.STARTING

    def ready(self) -> bool:
        """Whether every table was published as far as it went at some time since the start, or is not to be now.

        It is not where another process publishes or an operator paused it.
        """
        status = self._source.status()
        current = bool(status.tables) and all(table.current_at is not None for table in status.tables)
        self._ready = self._ready or current or status.state in {SourceState.STANDBY, SourceState.PAUSED}
        return self._ready

    def blocking(self) -> list[dict[str, Any]]:
        """Return the tables that were never published to their end, or why there is no session yet."""
        status = self._source.status()
        what = {"connector": status.connector, "state": status.state.value, "detail": status.detail}
        behind = [table.table for table in status.tables if table.current_at is None]
        return [{**what, "table": table} for table in behind] or ([] if status.tables else [what])

    def status(self) -> dict[str, Any]:
        """Return the connector's state and that of its tables."""
        status = self._source.status()
        return {
            "connector": status.connector,
            "state": status.state.value,
            "target": status.target_state.target.value,
            "target_since": status.target_state.since,
            "target_stored": status.target_state_stored,
            "since": status.since,
            "heartbeat": asdict(status.heartbeat) if status.heartbeat is not None else None,
            "detail": status.detail,
            "lease": asdict(status.lease) if status.lease is not None else None,
            "open_transaction": _shown(status.open_transaction),
            "warnings": list(status.warnings),
            "tables": [self._table(status, table) for table in status.tables],
        }

    @property
    def connector(self) -> str:
        """The connector's name."""
        return self._source.status().connector

    def tables(self) -> list[str]:
        """Return the tables that the status shows."""
        return [table.table for table in self._source.status().tables]

    def run_command(self, order: Order) -> None:
        """Note an order.

        Raises OrderRefused where another process publishes, where this one has ended, and for the approval of something
        else than what is held.
        """
        status, control = self._source.status(), self._source.control
        if status.state is SourceState.STANDBY:
            raise OrderRefused(f"this is a standby of {self.connector!r}; give the order to the process that publishes")
        if not self.live() or status.state is SourceState.STOPPED:
            raise OrderRefused(f"the source of {self.connector!r} has ended: {status.detail}")
        match order:
            case Order(verb=Verb.PAUSE):
                control.pause()
            case Order(verb=Verb.RESUME):
                control.resume()
            case Order(verb=Verb.RESTART):
                control.restart(order.table)
            case Order(table=None):
                raise OrderRefused(f"{order.verb.value} is about one table")
            case Order(verb=Verb.APPROVE, table=str() as table):
                held = [t.removal.id for t in status.tables if t.table == table and t.removal is not None]
                if order.removal not in held:
                    there = f"removal {held[0]} is" if held else "nothing is"
                    raise OrderRefused(f"{table} does not hold removal {order.removal}; {there} held now")
                control.approve(table, order.removal)
            case Order(table=str() as table):
                control.resend(table, order.keys)

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics of the connector and of each table."""
        return source_metrics(self._source.status(), now=time.time(), began=self._began)

    def _table(self, status: SourceStatus, table: TableStatus) -> dict[str, Any]:
        standby = status.state is SourceState.STANDBY
        return {
            "table": table.table,
            "topic": table.topic,
            "state": status.shown(table).value,
            "adopted": table.adopted,
            "rows_found_by": table.reading,
            "misses_late_commits": not table.covered,
            "load": None if table.load is None else table.load.fields(),
            "rows_total": table.rows_total,
            "skipped_total": table.skipped_total,
            "removals_stopped_total": table.stopped_total,
            "resent": dict(table.resent),
            "polls_total": table.polls_total,
            "errors_total": table.errors_total,
            "lag_seconds": None if standby else round(lag(table, time.time(), self._began), 3),
            "last_poll": table.last_poll,
            "last_publish": table.last_publish,
            "remembered_transactions": table.remembered,
            "held_since": table.held_since,
            "removal": asdict(table.removal) if table.removal is not None else None,
            "detail": table.detail,
        }


def _shown(transaction: OpenTransaction | None) -> dict[str, Any] | None:
    return {**asdict(transaction), "text": str(transaction)} if transaction is not None else None

"""A source as what it shows of itself: probes, status, metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from compactory.worker import Metric

from .source import Source
from .status import SourceState, SourceStatus, TableStatus

__all__ = ["SourceWorker"]

_LABELS = ("connector", "table")


class SourceWorker:
    """Implements `compactory.worker.Worker`. Thread-safe. ``alive`` says whether the source's thread still runs."""

    def __init__(self, source: Source, alive: Callable[[], bool]) -> None:
        self._source = source
        self._alive = alive
        self._began = time.time()

    @property
    def name(self) -> str:
        """``source`` and the connector's name."""
        return f"source {self._source.status().connector}"

    def live(self) -> bool:
        """Whether its thread runs, or is yet to be started; a source that waits for Postgres or Kafka is alive."""
        return self._alive() or self._source.status().state is SourceState.STARTING

    def ready(self) -> bool:
        """Whether every table was published as far as it went at some time since the start."""
        tables = self._source.status().tables
        return bool(tables) and all(table.current_at is not None for table in tables)

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
            "detail": status.detail,
            "warnings": list(status.warnings),
            "tables": [self._table(table) for table in status.tables],
        }

    def metrics(self) -> Iterable[Metric]:
        """Return the figures of each table."""
        status = self._source.status()
        now = time.time()
        active = float(status.state is SourceState.RUNNING)
        yield _counter("rows_total", "Records published", status, lambda table: table.rows_total)
        yield _counter("skipped_total", "Rows that could not be converted", status, lambda table: table.skipped_total)
        yield _counter("polls_total", "Polls that found something to look at", status, lambda table: table.polls_total)
        yield _counter("errors_total", "Sessions that failed", status, lambda table: table.errors_total)
        yield _gauge("lag_seconds", "Age of what the topic holds at least", status, lambda table: self._lag(table, now))
        held = "For how long a removal or a poll waits for an operator; 0 where none does"
        yield _gauge("held_back_seconds", held, status, lambda table: now - (table.held_since or now))
        yield _gauge("active", "1 where this process publishes the table", status, lambda _table: active)

    def _lag(self, table: TableStatus, now: float) -> float:
        return max(0.0, now - (table.current_at or self._began))

    def _table(self, table: TableStatus) -> dict[str, Any]:
        return {
            "table": table.table,
            "topic": table.topic,
            "state": table.state.value,
            "adopted": table.adopted,
            "reading": table.reading,
            "misses_late_commits": not table.covered,
            "rows_total": table.rows_total,
            "skipped_total": table.skipped_total,
            "polls_total": table.polls_total,
            "errors_total": table.errors_total,
            "lag_seconds": round(self._lag(table, time.time()), 3),
            "held_since": table.held_since,
            "detail": table.detail,
        }


def _metric(
    kind: Literal["counter", "gauge"],
    name: str,
    text: str,
    status: SourceStatus,
    figure: Callable[[TableStatus], float],
) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (status.connector, table.table): float(figure(table)) for table in status.tables
    }
    return Metric(name=f"compactory_source_{name}", kind=kind, help=text, labels=_LABELS, samples=samples)


_counter = partial(_metric, "counter")
_gauge = partial(_metric, "gauge")

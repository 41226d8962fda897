"""A source's picture as metrics. Pure.

The connector's own metrics are there in every state, so that an alert can distinguish "paused" from "gone". The metrics
of a table appear when the table is known. A standby reports no age, because it does not publish the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from compactory.worker import Metric

from ..offsets.phase import ResendReason
from .status import SourceState, SourceStatus, TableStatus

__all__ = ["lag", "source_metrics"]

_TABLE = ("connector", "table")

_Figure = Callable[[TableStatus], float | None]


def lag(table: TableStatus, now: float, began: float) -> float:
    """The age of the topic's newest state in seconds, at most; before the first poll, the age of the process."""
    return max(0.0, now - (table.current_at or began))


def source_metrics(status: SourceStatus, *, now: float, began: float) -> Iterator[Metric]:
    """Every metric of one connector; ``now`` and ``began`` (of the process) in seconds since 1970."""
    yield from _of_connector(status, now)
    yield from _counters(status)
    yield _resent(status)
    yield from _gauges(status, now, began)


def _of_connector(status: SourceStatus, now: float) -> Iterator[Metric]:
    states: dict[tuple[str, ...], float] = {
        (status.connector, state.value): float(state is status.state)
        for state in SourceState
        if state is not SourceState.HELD
    }
    yield Metric(
        name="compactory_source_state",
        kind="gauge",
        help="1 for the connector's state, 0 for every other",
        labels=("connector", "state"),
        samples=states,
    )
    since = status.target_state.since if status.target_state.paused else None
    oldest = status.open_transaction.since if status.open_transaction is not None else None
    beat = status.heartbeat if status.state is not SourceState.STANDBY else None
    paused = "Seconds since an operator paused the connector, including restarts of the process; 0 if it is not paused"
    transaction = "Age of the server's oldest transaction with an id; 0 below ten seconds"
    epoch = "Number of times the connector's lease has changed hands; none with an advisory lock instead of the lease"
    when = "Commit time of the newest heartbeat in Kafka, in seconds since 1970 by Postgres' clock"
    took = "Seconds from the commit of the last heartbeat to its acknowledgement by Kafka"
    for name, text, figure in (
        ("paused_seconds", paused, max(0.0, now - since) if since is not None else 0.0),
        ("open_transaction_seconds", transaction, now - oldest if oldest is not None else 0.0),
        ("lease_epoch", epoch, status.lease.epoch if status.lease is not None else None),
        ("heartbeat_timestamp_seconds", when, beat.committed_at if beat is not None else None),
        ("heartbeat_seconds", took, beat.seconds if beat is not None else None),
    ):
        samples: dict[tuple[str, ...], float] = {(status.connector,): float(figure)} if figure is not None else {}
        yield Metric(name=f"compactory_source_{name}", kind="gauge", help=text, labels=("connector",), samples=samples)


def _counters(status: SourceStatus) -> Iterator[Metric]:
    yield _metric("counter", "rows_total", "Records published", status, lambda table: table.rows_total)
    skipped = "Rows that could not be converted"
    yield _metric("counter", "skipped_total", skipped, status, lambda table: table.skipped_total)
    stopped = "Removals that were not published, because a living row with a sent record has the key"
    yield _metric("counter", "removals_stopped_total", stopped, status, lambda table: table.stopped_total)
    polls = "Polls of tables that may have changed"
    yield _metric("counter", "polls_total", polls, status, lambda table: table.polls_total)
    errors = "Polls of the table, and sessions of its connector, that failed"
    yield _metric("counter", "errors_total", errors, status, lambda table: table.errors_total)


def _resent(status: SourceStatus) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (status.connector, table.table, why.value): float(table.resent.get(why.value, 0))
        for table in status.tables
        for why in ResendReason
    }
    return Metric(
        name="compactory_source_resent_total",
        kind="counter",
        help="Records of polls that sent rows again, by reason",
        labels=(*_TABLE, "reason"),
        samples=samples,
    )


def _gauges(status: SourceStatus, now: float, began: float) -> Iterator[Metric]:
    read = "Rows that a running load has read; none without a load"
    yield _metric("gauge", "load_rows", read, status, lambda table: table.load.rows if table.load else None)
    left = "Rows that were left when the load began or this process continued it"
    yield _metric("gauge", "load_expected_rows", left, status, lambda table: table.load.of if table.load else None)
    publishing = status.state is SourceState.RUNNING
    standby = status.state is SourceState.STANDBY
    states: dict[tuple[str, ...], float] = {
        (status.connector, table.table, status.shown(table).value): 1.0 for table in status.tables
    }
    yield Metric(
        name="compactory_source_table_state",
        kind="gauge",
        help="1, with the table's state as a label",
        labels=(*_TABLE, "state"),
        samples=states,
    )
    active = "1 if this process publishes the table"
    yield _metric("gauge", "active", active, status, lambda _table: float(publishing))
    behind = "Seconds; every change older than this is in the topic; none from a standby"
    yield _metric("gauge", "lag_seconds", behind, status, lambda table: None if standby else lag(table, now, began))
    held = "Seconds for which a removal or a poll has waited for an operator; 0 if none waits"
    yield _metric("gauge", "held_back_seconds", held, status, lambda table: now - (table.held_since or now))
    keys = "Keys whose removal waits for compactory source approve"
    yield _metric("gauge", "held_keys", keys, status, lambda table: table.removal.removed if table.removal else 0)
    ids = "Remembered ids of transactions that are later than an open one; the table waits at 100,000"
    yield _metric("gauge", "remembered_transactions", ids, status, lambda table: table.remembered)
    polled = "End of the last successful poll, in seconds since 1970; none before the first"
    yield _metric("gauge", "last_poll_timestamp_seconds", polled, status, lambda table: table.last_poll)
    published = "Time of the last published record, in seconds since 1970; none before the first"
    yield _metric("gauge", "last_publish_timestamp_seconds", published, status, lambda table: table.last_publish)


def _metric(kind: Literal["counter", "gauge"], name: str, text: str, status: SourceStatus, figure: _Figure) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (status.connector, table.table): float(found) for table in status.tables if (found := figure(table)) is not None
    }
    return Metric(name=f"compactory_source_{name}", kind=kind, help=text, labels=_TABLE, samples=samples)

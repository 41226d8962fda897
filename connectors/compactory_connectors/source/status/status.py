"""The status of a source and of its tables. Each field declares the metrics that show it. Pure.

The connector's own metrics are there in every state, so that an alert can distinguish "paused" from "gone". The metrics
of a table appear when the table is known. A standby reports no age, because it does not publish the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

from compactory_connectors.figures import Figure, figures_of

from ..offsets.offset_parts import ResendReason
from ..offsets.stored_offsets import TargetState
from ..polling.reader import Load
from ..polling.removal import Hold
from ..postgres.transactions import OpenTransaction

__all__ = [
    "SOURCE_FIGURES",
    "TABLE_FIGURES",
    "HeartbeatStatus",
    "LeaseStatus",
    "Moment",
    "SourceState",
    "SourceStatus",
    "TableStatus",
]


class SourceState(Enum):
    """States of a connector and of its tables, named as in Kafka Connect if it has the state.

    Only tables can be HELD; a table of a connector that does not run is shown in the connector's state.
    """

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"  # by an operator; nothing is polled until an operator resumes it
    STANDBY = "STANDBY"  # another process publishes; this one takes over when that process ends
    WAITING = "WAITING"  # Postgres or Kafka is away; the source tries again by itself
    HELD = "HELD"  # an operator must approve a removal or change of many keys, or end a transaction
    FAILED = "FAILED"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment at which metrics are computed; ``now`` and ``began`` (of the process) in seconds since 1970."""

    status: SourceStatus
    now: float
    began: float

    @property
    def is_standby(self) -> bool:
        return self.status.state is SourceState.STANDBY

    def lag(self, current_at: float | None) -> float | None:
        """Return the age of the topic's newest state in seconds, at most; None from a standby.

        Before the first poll it is the age of the process.
        """
        return None if self.is_standby else max(0.0, self.now - (current_at or self.began))


def _states(state: SourceState, _: Moment) -> dict[str, float]:
    return {
        other_state.value: float(other_state is state)
        for other_state in SourceState
        if other_state is not SourceState.HELD
    }


def _resent(counts: Mapping[str, int], _: Moment) -> dict[str, float]:
    return {reason.value: counts.get(reason.value, 0) for reason in ResendReason}


def _seconds_since(start: float | None, moment: Moment) -> float:
    return max(0.0, moment.now - start) if start is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The status of one table. Counters since the process began; times in seconds since 1970."""

    table: str
    topic: str
    state: Annotated[
        SourceState,
        Figure(
            "table_state",
            "1, with the table's state as a label",
            lambda state, moment: {moment.status.shown(state).value: 1.0},
            ("state",),
        ),
        Figure(
            "active",
            "1 if this process publishes the table",
            lambda _, moment: moment.status.state is SourceState.RUNNING,
        ),
    ] = SourceState.STARTING
    adopted: bool = False
    rows_found_by: str = ""
    """How new rows are found, in words."""
    misses_late_commits: bool = False
    """True if changes that commit late can be missed (guarantee 8 does not hold)."""
    load: Annotated[
        Load | None,
        Figure(
            "load_rows", "Rows that a running load has read; none without a load", lambda load, _: load and load.rows
        ),
        Figure(
            "load_expected_rows",
            "Rows that were left when the load began or this process continued it",
            lambda load, _: load and load.of,
        ),
    ] = None
    """The progress of a running load."""
    rows_total: Annotated[int, Figure("rows_total", "Records published")] = 0
    skipped_total: Annotated[int, Figure("skipped_total", "Rows that could not be converted")] = 0
    removals_stopped_total: Annotated[
        int,
        Figure(
            "removals_stopped_total",
            "Removals that were not published, because a living row with a sent record has the key",
        ),
    ] = 0
    resent: Annotated[
        Mapping[str, int],
        Figure("resent_total", "Records of polls that sent rows again, by reason", _resent, ("reason",)),
    ] = field(default_factory=dict)
    """Records of polls that began before the end of what had been sent, by ``ResendReason``."""
    polls_total: Annotated[int, Figure("polls_total", "Polls of tables that may have changed")] = 0
    errors_total: Annotated[
        int, Figure("errors_total", "Polls of the table, and sessions of its connector, that failed")
    ] = 0
    current_at: Annotated[
        float | None,
        Figure(
            "lag_seconds",
            "Seconds; every change older than this is in the topic; none from a standby",
            lambda current_at, moment: moment.lag(current_at),
        ),
    ] = None
    """Everything committed before this time is in the topic."""
    last_poll: Annotated[
        float | None,
        Figure(
            "last_poll_timestamp_seconds",
            "End of the last successful poll, in seconds since 1970; none before the first",
        ),
    ] = None
    last_publish: Annotated[
        float | None,
        Figure(
            "last_publish_timestamp_seconds",
            "Time of the last published record, in seconds since 1970; none before the first",
        ),
    ] = None
    remembered_transactions: Annotated[
        int,
        Figure(
            "remembered_transactions",
            "Remembered ids of transactions that are later than an open one; the table waits at 100,000",
        ),
    ] = 0
    held_since: Annotated[
        float | None,
        Figure(
            "held_back_seconds",
            "Seconds for which a removal, a change or a poll has waited for an operator; 0 if none waits",
            _seconds_since,
        ),
    ] = None
    removal: Annotated[
        Hold | None,
        Figure(
            "held_keys",
            "Keys whose removal waits for compactory source approve",
            lambda hold, _: hold.removed if hold is not None else 0,
        ),
        Figure(
            "held_changes",
            "Keys whose change of value waits for compactory source approve",
            lambda hold, _: hold.changed if hold is not None else 0,
        ),
    ] = None
    """The removal or change of values that waits for an approval."""
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """The lease, as Postgres described it last.

    ``kind``: ``lease_table``, ``advisory_lock``, or None before a database was reached. ``lacks``: a danger that this
    kind does not protect from, and the remedy. ``holder``: the other process that holds it. ``epoch``: the number of
    times a lease row has changed hands.
    """

    held: bool
    kind: str | None
    lacks: str | None = None
    holder: str | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStatus:
    """The last heartbeat that Kafka has acknowledged, ``seconds`` after its commit by Postgres' clock."""

    committed_at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The status of one connector."""

    connector: str
    state: Annotated[
        SourceState, Figure("state", "1 for the connector's state, 0 for every other", _states, ("state",))
    ] = SourceState.STARTING
    target_state: Annotated[
        TargetState,
        Figure(
            "paused_seconds",
            "Seconds since an operator paused the connector, including restarts of the process; 0 if it is not paused",
            lambda target, moment: _seconds_since(target.since if target.is_paused else None, moment),
        ),
    ] = field(default_factory=TargetState)
    target_state_stored: bool = False
    since: float | None = None
    """The time since when the connector is in its state."""
    heartbeat: Annotated[
        HeartbeatStatus | None,
        Figure(
            "heartbeat_timestamp_seconds",
            "Commit time of the newest heartbeat in Kafka, in seconds since 1970 by Postgres' clock",
            lambda heartbeat, moment: None if moment.is_standby else heartbeat and heartbeat.committed_at,
        ),
        Figure(
            "heartbeat_seconds",
            "Seconds from the commit of the last heartbeat to its acknowledgement by Kafka",
            lambda heartbeat, moment: None if moment.is_standby else heartbeat and heartbeat.seconds,
        ),
    ] = None
    detail: str | None = None
    lease: Annotated[
        LeaseStatus | None,
        Figure(
            "lease_epoch",
            "Number of times the connector's lease has changed hands; none with an advisory lock instead of the lease",
            lambda lease, _: lease and lease.epoch,
        ),
    ] = None
    open_transaction: Annotated[
        OpenTransaction | None,
        Figure(
            "open_transaction_seconds",
            "Age of the server's oldest transaction with an id; 0 below ten seconds",
            lambda transaction, moment: _seconds_since(transaction and transaction.since, moment),
        ),
    ] = None
    """The oldest running transaction of the server, if it has been open for long."""
    warnings: tuple[str, ...] = ()
    tables: tuple[TableStatus, ...] = ()

    def shown(self, state: SourceState) -> SourceState:
        """Return the state of a table for people: a connector that does not run polls none."""
        return state if self.state is SourceState.RUNNING else self.state


SOURCE_FIGURES: Final = figures_of(SourceStatus)
TABLE_FIGURES: Final = figures_of(TableStatus)
"""Metrics of a connector and of a table, each with the name of the field that it shows."""

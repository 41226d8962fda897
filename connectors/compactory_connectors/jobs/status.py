"""The figures of an executor and of the jobs in the tables, as status, metrics and probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import psycopg
from psycopg.rows import class_row

from compactory_connectors import figures
from compactory_connectors.figures import BoardWorker, Figure, by_label
from compactory_sql import query

from .job import TENANT
from .limits import JobLimit
from .statements import limits_in_force

__all__ = [
    "Board",
    "ExecutorStatus",
    "JobsWorker",
    "LimitStatus",
    "TypeStatus",
    "executor_statuses",
    "limit_statuses",
    "type_statuses",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatus:
    """Jobs of one type and state that are not finished. ``oldest``: seconds since the first of them was due."""

    type: str
    state: str
    jobs: int
    oldest: float
    executors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStatus:
    """An executor: its running attempts, and ``silent``, the seconds since its last heartbeat."""

    id: int
    name: str
    pool: str
    silent: float
    running: int


def type_statuses(connection: psycopg.Connection[Any]) -> list[TypeStatus]:
    """Return every type that has jobs, counted up to 100,000 in all. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(TypeStatus)).execute(query("jobs/status")).fetchall()


def executor_statuses(connection: psycopg.Connection[Any]) -> list[ExecutorStatus]:
    """Return every executor. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(ExecutorStatus)).execute(query("jobs/executors")).fetchall()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """A limit in force, and how many of its jobs run or are claimed."""

    limit: JobLimit
    running_now: int

    def fields(self) -> dict[str, Any]:
        return self.limit.fields() | {"running_now": self.running_now}


def limit_statuses(connection: psycopg.Connection[Any]) -> list[LimitStatus]:
    """Return the limits in force. Raises psycopg.Error."""
    rows = connection.execute(query("jobs/limited_running"), {"header": TENANT}).fetchall()
    return [
        LimitStatus(limit=limit, running_now=sum(count for *job, count in rows if limit.covers(*job)))
        for limit in limits_in_force(connection)
    ]


@dataclass(kw_only=True, eq=False)
class Board(figures.Board):
    """Figures of one executor. Thread-safe. Labels are types that have a handler or jobs."""

    kind = "jobs"
    executor: int | None = None
    partitions: Annotated[
        Sequence[int], Figure("partitions", "Partitions of this executor", lambda value, _: len(value))
    ] = ()
    claimed: Annotated[int, Figure("claimed", "Jobs that this executor has claimed")] = 0
    types: Annotated[
        Sequence[Mapping[str, Any]],
        Figure(
            "depth",
            "Jobs that are not finished, by state, counted up to 100,000 in all",
            by_label("jobs", "type", "state"),
            ("type", "state"),
        ),
        Figure(
            "oldest_age_seconds",
            "Seconds since the first scheduled job of the type was due",
            lambda rows, _: {row["type"]: row["oldest"] for row in rows if row["state"] == "scheduled"},
            ("type",),
        ),
        Figure(
            "type_executors",
            "Executors that have a handler of a type that has jobs",
            by_label("executors", "type"),
            ("type",),
        ),
    ] = ()
    runs: Annotated[
        dict[str, dict[str, int]],
        Figure(
            "runs_total",
            "Attempts that ended, by outcome",
            lambda runs, _: {(type_, name): n for type_, outcomes in runs.items() for name, n in outcomes.items()},
            ("type", "outcome"),
        ),
    ] = field(default_factory=dict)
    seconds: Annotated[
        dict[str, float], Figure("run_seconds_total", "Seconds that attempts took", labels=("type",))
    ] = field(default_factory=dict)
    lost: Annotated[int, Figure("lost_total", "Attempts that ended after their jobs were taken over")] = 0
    rescued: Annotated[int, Figure("rescued_total", "Jobs that this executor has rescued from expired executors")] = 0
    limits: Annotated[
        Sequence[Mapping[str, Any]],
        Figure(
            "limit",
            "Jobs of a type, tenant or prefix of groups that may run at once in all executors",
            lambda rows, _: {(row["kind"], row["name"]): row["running"] for row in rows if row["running"] is not None},
            ("kind", "name"),
        ),
    ] = ()
    worked_at: float | None = None

    def ended(self, type_: str, outcome: str, seconds: float) -> None:
        with self._lock:
            outcomes = self.runs.setdefault(type_, {})
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            self.seconds[type_] = self.seconds.get(type_, 0.0) + seconds


class JobsWorker(BoardWorker):
    """Implements `compactory.worker.Worker`. Ready once the executor has connected and has its partitions."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor, waits_for="waiting for its partitions")

"""The figures of an executor, and of the jobs in the tables."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

from compactory_sql import query

__all__ = ["Board", "ExecutorStatus", "TypeStatus", "executor_statuses", "type_statuses"]


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


class Board:
    """State and counters of one executor. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._ended: dict[str, dict[str, int]] = {}
        self._seconds: dict[str, float] = {}
        self._counts = {"lost": 0, "rescued": 0}
        self._facts: dict[str, Any] = {
            "executor": None, "partitions": [], "claimed": 0, "types": [], "paused": [], "detail": None,
            "worked_at": None,
        }  # fmt: skip

    def ended(self, type_: str, outcome: str, seconds: float) -> None:
        """Count the end of an attempt."""
        with self._lock:
            outcomes = self._ended.setdefault(type_, {})
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            self._seconds[type_] = self._seconds.get(type_, 0.0) + seconds

    def count(self, figure: Literal["lost", "rescued"], number: int = 1) -> None:
        """Count attempts whose jobs were taken over (lost), or jobs of expired executors (rescued)."""
        with self._lock:
            self._counts[figure] += number

    def note(self, **facts: Any) -> None:
        """Set ``executor``, ``partitions``, ``claimed``, ``types``, ``paused``, ``detail`` or ``worked_at``."""
        with self._lock:
            self._facts.update(facts)

    def picture(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        with self._lock:
            runs = {type_: dict(outcomes) for type_, outcomes in self._ended.items()}
            return {**self._facts, **self._counts, "runs": runs, "seconds": self._seconds.copy()}

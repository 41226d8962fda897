"""What an executor shows of itself, and what the tables say: a picture of the moment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

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

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStatus:
    """One executor: its attempts, and the seconds since its last heartbeat."""

    id: int
    name: str
    pool: str
    silent: float
    running: int

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def type_statuses(connection: psycopg.Connection[Any]) -> list[TypeStatus]:
    """Every type with jobs, counted up to 100,000 in all. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(TypeStatus)).execute(query("jobs/status")).fetchall()


def executor_statuses(connection: psycopg.Connection[Any]) -> list[ExecutorStatus]:
    """Every executor. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(ExecutorStatus)).execute(query("jobs/executors")).fetchall()


class Board:
    """State and counters of one executor. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._ended: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lost = 0
        self._rescued = 0
        self._executor: int | None = None
        self._partitions: list[int] = []
        self._claimed = 0
        self._types: list[TypeStatus] = []
        self._error: str | None = None
        self._worked_at: float | None = None

    def ended(self, type_: str, outcome: str, seconds: float) -> None:
        """An attempt has ended."""
        with self._lock:
            self._ended[type_, outcome] += 1
            self._seconds[type_] += seconds  # type: ignore[assignment]  # counters of floats work

    def lost(self) -> None:
        """An attempt ended after its job was taken over."""
        with self._lock:
            self._lost += 1

    def rescued(self, number: int) -> None:
        """Jobs of a dead executor were taken back."""
        with self._lock:
            self._rescued += number

    def follows(self, executor: int, partitions: list[int]) -> None:
        """Registered, and with these partitions."""
        with self._lock:
            self._executor, self._partitions = executor, partitions
            self._worked_at, self._error = time.time(), None

    def claimed(self, number: int) -> None:
        """So many jobs are claimed."""
        with self._lock:
            self._claimed = number

    def sampled(self, types: list[TypeStatus]) -> None:
        """What the tables say."""
        with self._lock:
            self._types = types

    def failed(self, error: str) -> None:
        """Postgres or Kafka is away."""
        with self._lock:
            self._error = error

    def picture(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        with self._lock:
            runs: dict[str, dict[str, int]] = {}
            for (type_, outcome), number in self._ended.items():
                runs.setdefault(type_, {})[outcome] = number
            return {
                "executor": self._executor,
                "partitions": self._partitions,
                "claimed": self._claimed,
                "runs": runs,
                "seconds": {type_: float(seconds) for type_, seconds in self._seconds.items()},
                "lost": self._lost,
                "rescued": self._rescued,
                "worked_at": self._worked_at,
                "detail": self._error,
                "types": [item.fields() for item in self._types],
            }

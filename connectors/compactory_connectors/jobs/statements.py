"""The connections of an executor, and its statements for ends of attempts and for limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .claim_statements import ClaimStatements
from .job import TENANT
from .limits import JobLimit, Limits
from .rows import Outcome, outcomes_json

__all__ = ["Commit", "EndStatements", "JobTable", "limits_in_force", "open_jobs"]

_JOBS = Part(name="jobs", needs="jobs need", installed="jobs are", may="run jobs")


@dataclass(slots=True)
class Commit:
    """The commit of outcomes. ``ids``: the jobs that this executor still had; None: not committed."""

    ids: frozenset[int] | None = None


@dataclass(slots=True)
class EndStatements:
    """The statements on the connection for ends. Owned by the keeper's thread. Raises psycopg.Error."""

    connection: WatchedConnection

    @contextmanager
    def finish(self, outcomes: Sequence[Outcome], commit: Commit) -> Iterator[None]:
        """Commit outcomes in one transaction, while the body claims further jobs.

        The commit is complete at the end of the body, also if that raises.
        """
        if not outcomes:
            commit.ids = frozenset()
            yield
            return
        error: psycopg.Error | None = None
        with self.connection.pipeline():  # the server begins at once; the end of the pipeline commits
            ended = self.connection.execute(query("jobs/finish"), outcomes_json(outcomes))
            if any(outcome.state == "scheduled" and not outcome.delay for outcome in outcomes):
                self.connection.execute(query("jobs/notify"))
            try:
                yield
            except psycopg.Error as raised:
                error = raised
        commit.ids = frozenset(itertools.chain.from_iterable(ended.fetchall()))
        if error is not None:
            raise error


@dataclass(slots=True)
class JobTable:
    """The connections and statements of one executor. Owned by the keeper's thread. Raises psycopg.Error."""

    connection: WatchedConnection
    ends_connection: InitVar[WatchedConnection]
    executor: int
    types: Sequence[str]
    claims: ClaimStatements = field(init=False)
    ends: EndStatements = field(init=False)

    def __post_init__(self, ends_connection: WatchedConnection) -> None:
        self.claims = ClaimStatements(self.connection, self.executor, self.types)
        self.ends = EndStatements(ends_connection)

    def newest(self) -> int:
        """Return the newest number of a job or a position."""
        row = self.connection.execute(query("jobs/newest")).fetchone()
        return row[0] if row is not None else 0

    def limits(self) -> list[JobLimit]:
        """Return the limits in force, except those of types that this executor has no handler for."""
        limits = limits_in_force(self.connection)
        return [limit for limit in limits if limit.kind != "type" or limit.name in self.types]

    def mark_limited(self, limits: Limits) -> None:
        """Count running jobs of this executor that are under limits now."""
        parameters = {
            "executor": self.executor, "header": TENANT,
            "types": limits.types, "tenants": limits.tenants, "prefixes": limits.prefixes,
        }  # fmt: skip
        self.connection.execute(query("jobs/mark_limited"), parameters)


def limits_in_force(connection: psycopg.Connection[Any]) -> list[JobLimit]:
    """Return the limits of all types: those of operators, and of handlers for other types. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(JobLimit)).execute(query("jobs/limits")).fetchall()


def open_jobs(conninfo: Mapping[str, Any], purpose: str) -> WatchedConnection:
    """Return a connection in autocommit to a database with jobs; see `open_part`."""
    connection, _ = open_part(conninfo, _JOBS, purpose)
    return connection

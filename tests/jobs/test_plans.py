"""Statements of an executor read the rows that they are about, however many others there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from compactory_connectors.jobs.statements import Outcome, open_jobs, outcomes_json
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_sql import query

OTHERS = """
INSERT INTO compactory.jobs (type, place, payload, run_at, state, executor, token, finished_at)
SELECT 'a', i, '{}', now() + CASE state WHEN 'scheduled' THEN interval '1 day' ELSE '0' END, state, 1, 1, now()
  FROM unnest('{scheduled,running,succeeded}'::text[]) AS state, generate_series(1, 3000) AS i ORDER BY state DESC, i;
"""
STATEMENTS: dict[str, dict[str, Any]] = {
    "jobs/promote": {"since": "-infinity", "most": 1000},
    "jobs/claim": {"start": 0, "running": [], "lows": [], "limit": 100},
    "jobs/finish": outcomes_json([Outcome(id=number, token=1, state="succeeded") for number in range(6001, 6011)]),
    "jobs/expire": {"keep": timedelta(days=1)},
}


@pytest.fixture
def executor(migrated: str) -> Iterator[psycopg.Connection]:
    """A keeper's connection to a table of many jobs."""
    with closing(open_jobs(checked_url(migrated).conninfo, "test")) as connection:
        connection.execute(OTHERS)
        yield connection


def ignored(plan: Any) -> int:
    """Rows that were read in vain."""
    if isinstance(plan, list):
        return sum(map(ignored, plan))
    if not isinstance(plan, dict):
        return 0
    return sum(value if name.startswith("Rows Removed") else ignored(value) for name, value in plan.items())


def plan(executor: psycopg.Connection, name: str) -> dict[str, Any]:
    """The plan of a statement, as it went."""
    types = {"types": ["a"], "claimed_types": ["a"], "paused_groups": [], "limited": None}
    given = {**types, "of": 1, "partitions": [0], "executor": 1, "token": 2, **STATEMENTS[name]}
    row = executor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query(name)}", given).fetchone()
    assert row is not None
    found: dict[str, Any] = row[0][0]["Plan"]
    return found


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("analyzed", [True, False])
def test_no_row_is_read_in_vain(executor: psycopg.Connection, name: str, analyzed: bool) -> None:
    if analyzed:
        executor.execute("ANALYZE compactory.jobs_live; ANALYZE compactory.jobs_finished")
    assert ignored(plan(executor, name)) < 100


@pytest.mark.parametrize("name", ["jobs/claim", "jobs/finish"])
@pytest.mark.parametrize("rows", [0, 1, 100])
def test_dead_rows_are_not_read(executor: psycopg.Connection, migrated: str, name: str, rows: int) -> None:
    """A held snapshot keeps them, and vacuum counts the few that live: the planner takes any index for small."""
    executor.execute(
        "INSERT INTO compactory.jobs (type, place, payload, run_at)"
        " SELECT 'a', i, '{}', now() FROM generate_series(1, 50000) AS i"
    )
    executor.execute("ANALYZE compactory.jobs_live")
    with psycopg.connect(migrated) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM compactory.jobs_live LIMIT 1")
        executor.execute("DELETE FROM compactory.jobs_live WHERE id NOT BETWEEN 6001 AND 6010")
        executor.execute("UPDATE pg_class SET reltuples = %s WHERE oid = 'compactory.jobs_live'::regclass", [rows])
        found = plan(executor, name)
        assert found["Shared Hit Blocks"] + found["Shared Read Blocks"] < 500

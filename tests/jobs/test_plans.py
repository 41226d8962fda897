"""Statements of an executor read the rows that they are about, however many others there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from compactory_connectors.jobs.limits import NO_LIMIT, JobLimit, Limits, limits_json
from compactory_connectors.jobs.rows import Outcome, outcomes_json
from compactory_connectors.jobs.statements import open_jobs
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_sql import query

OTHERS = """
INSERT INTO compactory.jobs (type, place, payload, run_at, state, executor, token, finished_at)
SELECT 'a', i, '{}', now() + CASE state WHEN 'scheduled' THEN interval '1 day' ELSE '0' END, state, 1, 1, now()
  FROM unnest('{scheduled,running,succeeded}'::text[]) AS state, generate_series(1, 3000) AS i ORDER BY state DESC, i;
"""
FROM_START: dict[str, Any] = {"start": 0, "running": [], "lows": [], "limit": 100}
LIMITS = Limits(
    [JobLimit(kind=kind, name=name, running=1) for kind, name in (("type", "b"), ("group", "g"), ("tenant", "north"))]
)
STATEMENTS: dict[str, dict[str, Any]] = {
    "jobs/promote": {"since": "-infinity", "most": 1000},
    "jobs/claim": FROM_START,
    "jobs/search_limited": FROM_START | {"limited_types": LIMITS.types},
    "jobs/limit_rooms": {"limits": limits_json(LIMITS.in_force)},
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


def plan(executor: psycopg.Connection, name: str, limits: Limits = LIMITS) -> dict[str, Any]:
    """The plan of a statement, as it went."""
    types = {"types": ["a"], "claimed_types": ["a"], "paused_groups": [], "limited": None}
    executor_ = {"of": 1, "partitions": [0], "executor": 1, "token": 2}
    parameters = {**types, **executor_, **limits.parameters(NO_LIMIT), **STATEMENTS[name]}
    with executor.transaction(force_rollback=True):
        row = executor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query(name)}", parameters).fetchone()
    assert row is not None
    found: dict[str, Any] = row[0][0]["Plan"]
    return found


def indexes(plan: Any) -> list[str]:
    """Names of the indexes that a plan reads, in its order."""
    if isinstance(plan, list):
        return [name for part in plan for name in indexes(part)]
    if not isinstance(plan, dict):
        return []
    own = [plan["Index Name"]] if "Index Name" in plan else []
    return own + [name for part in plan.values() for name in indexes(part)]


DUE = """
INSERT INTO compactory.jobs_live (id, type, headers, place, payload, run_at, position)
SELECT i, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END, '{"tenant": "south"}', i, '{}', now(), i
  FROM (SELECT nextval('compactory.jobs_id_seq') AS i FROM generate_series(1, 2000)) AS n
"""


def test_claims_read_the_same_with_limits_and_without(executor: psycopg.Connection) -> None:
    """The same indexes, and as many pages."""
    executor.execute(DUE)
    executor.execute("ANALYZE compactory.jobs_live")
    with_limits, without = plan(executor, "jobs/claim"), plan(executor, "jobs/claim", Limits())
    assert "jobs_due" in indexes(without)
    assert indexes(with_limits) == indexes(without)
    pages = [item["Shared Hit Blocks"] + item["Shared Read Blocks"] for item in (with_limits, without)]
    assert pages[0] <= 1.1 * pages[1] + 20
    assert [index for index in indexes(plan(executor, "jobs/limit_rooms")) if index.startswith("jobs_running")] == (
        ["jobs_running_limited"] * 3
    )


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

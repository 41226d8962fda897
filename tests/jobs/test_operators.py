"""Operators' orders for many jobs beside rounds of executors, which lock rows in an order of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError, OrderRefused
from compactory_connectors.jobs import NewJob, operators
from compactory_connectors.jobs.operators import (
    Act,
    JobFilter,
    change_jobs,
    count_jobs,
    jobs_where,
)
from compactory_connectors.jobs.statements import open_jobs
from compactory_connectors.postgres.jdbc_url import checked_url
from tests.jobs.harness import Bench
from tests.source.workload import wait_until

TOUCH = "UPDATE compactory.jobs_live SET attempt = attempt WHERE id = %s"
WAITS = "pg_stat_activity WHERE application_name = 'compactory-jobs operator' AND wait_event_type = 'Lock'"


def enqueued(bench: Bench, groups: bool = False) -> list[int]:
    """Jobs that have been tried once; with ``groups`` every second one waits behind the one before."""
    bench.jobs.declare("a")
    with bench.sql.transaction():
        batch = [NewJob(type="a", group=f"g{n // 2}" if groups else None) for n in range(20)]
        ids: list[int] = bench.jobs.enqueue_many(bench.sql, batch)
        bench.sql.execute("UPDATE compactory.jobs_live SET attempt = 1")
    return ids


def ordered(bench: Bench, act: Act, ids: list[int]) -> int:
    with closing(open_jobs(checked_url(bench.url).conninfo, "operator")) as connection:
        return change_jobs(connection, act, ids)


@pytest.mark.parametrize("act", [Act.CANCEL, Act.RETRY])
def test_orders_for_many_jobs_do_not_deadlock_with_a_round(bench: Bench, act: Act) -> None:
    """The round locks jobs in the opposite order, half of them before the operator does and half of them after."""
    ids = enqueued(bench)
    with psycopg.connect(bench.url) as round_, ThreadPoolExecutor() as pool:
        for job in reversed(ids[10:]):
            round_.execute(TOUCH, [job])
        operator = pool.submit(ordered, bench, act, ids)
        wait_until(lambda: bench.count(WAITS) == 1, what="the operator to wait for the round")
        for job in reversed(ids[:10]):
            round_.execute(TOUCH, [job])
        round_.commit()
        assert operator.result(20) == len(ids)


def test_groups_go_on_without_waiting_for_a_round(bench: Bench) -> None:
    """The first jobs of groups are cancelled while a round has the next ones locked, from the last one on."""
    ids = enqueued(bench, groups=True)
    with psycopg.connect(bench.url) as round_:
        for job in reversed(ids[1::2]):
            round_.execute(TOUCH, [job])
        assert ordered(bench, Act.CANCEL, ids[::2]) == len(ids) // 2


def test_a_job_that_stays_locked_is_named_and_the_others_are_cancelled(bench: Bench) -> None:
    ids = enqueued(bench, groups=True)

    with psycopg.connect(bench.url) as holder, psycopg.connect(bench.url, autocommit=True) as operator:
        holder.execute(TOUCH, [ids[4]])
        operator.execute("SET lock_timeout = '200ms'")
        with pytest.raises(OrderRefused, match=rf"^1 of 10 jobs is locked .* {ids[4]}"):
            change_jobs(operator, Act.CANCEL, ids[::2])
    assert [job for job in ids[::2] if bench.state(job) != "cancelled"] == [ids[4]]


def test_a_locked_job_whose_unique_key_was_taken_is_named_and_the_others_run_again(bench: Bench) -> None:
    """The other jobs were changed before; the order says so, and executors hear of them."""
    bench.jobs.declare("a")
    with bench.sql.transaction():
        taken, other = bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", unique_key="k"), NewJob(type="a")])
        bench.sql.execute("UPDATE compactory.jobs_live SET state = 'failed', attempt = 1")
    with psycopg.connect(bench.url) as holder, ThreadPoolExecutor() as pool:
        holder.execute(TOUCH, [taken])
        operator = pool.submit(ordered, bench, Act.RETRY, [taken, other])
        wait_until(lambda: bench.count(WAITS) == 1, what="the operator to wait for the lock")
        bench.enqueue("a", unique_key="k")
        holder.commit()
        with pytest.raises(OrderRefused, match=f"unique key of job {taken} by now, 1 other jobs are done"):
            operator.result(20)
    assert (bench.state(taken), bench.state(other)) == ("failed", "scheduled")


def test_orders_beside_a_busy_executor(bench: Bench) -> None:
    """Cancelled in any order while they are claimed and end: each job is through, and nobody is a deadlock's victim."""
    bench.jobs.handler("a")(lambda job: None)
    running = bench.executor()
    with ThreadPoolExecutor() as pool:
        orders = []
        for n in range(20):
            with bench.sql.transaction():
                batch = [NewJob(type="a", group=f"g{m % 7}" if m % 2 else None) for m in range(100)]
                ids: list[int] = bench.jobs.enqueue_many(bench.sql, batch)
            orders.append(pool.submit(ordered, bench, Act.CANCEL, ids[:: 1 if n % 2 else -1]))
        for order in orders:
            order.result(30)
    bench.wait_for_all()
    assert running.board.picture()["detail"] is None


LATER = datetime.now(UTC) + timedelta(days=1)


def found(bench: Bench, **fields: Any) -> list[int]:
    with closing(open_jobs(checked_url(bench.url).conninfo, "operator")) as connection:
        ids = [row.id for row in jobs_where(connection, where=JobFilter(**fields))]
        assert count_jobs(connection, JobFilter(**fields)) == (len(ids), True)
    return ids


@pytest.mark.parametrize("payload", ["{order: 1}", "", "NaN", '{"order": 1', "[1] [2]", "\ud800"])
@pytest.mark.parametrize("act", list(Act))
def test_a_payload_that_is_no_json_changes_nothing(bench: Bench, act: Act, payload: str) -> None:
    bench.jobs.declare("a")
    job = bench.enqueue("a", run_at=LATER)
    with pytest.raises(ConfigError, match="is no JSON"):
        change_jobs(bench.sql, act, where=JobFilter(payload=payload))
    assert bench.state(job) == "scheduled"


def test_json_that_only_postgres_refuses_changes_nothing(bench: Bench) -> None:
    bench.jobs.declare("a")
    job = bench.enqueue("a")
    with pytest.raises(psycopg.DataError):
        change_jobs(bench.sql, Act.CANCEL, where=JobFilter(payload=r'"\u0000"'))
    assert bench.state(job) == "scheduled"


def test_filters_that_no_job_can_match_are_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="unknown state 'dead'"):
        JobFilter(state="dead")
    with pytest.raises(ConfigError, match="has no zone"):
        JobFilter(since=datetime(2024, 1, 31))  # noqa: DTZ001
    with pytest.raises(ConfigError, match="discard changes no scheduled jobs: choose failed"):
        change_jobs(bench.sql, Act.DISCARD, where=JobFilter(state="scheduled"))
    with pytest.raises(ConfigError, match="cancel changes no failed jobs"):
        count_jobs(bench.sql, JobFilter(state="failed"), Act.CANCEL)


def test_each_field_of_a_filter_selects_jobs(bench: Bench) -> None:
    """Newest first; fields are joined by AND."""
    bench.jobs.declare("a")
    bench.jobs.declare("b")
    order = bench.enqueue("a", {"order": 7, "lines": [1, 2]}, group="g", tenant="north")
    other = bench.enqueue("b", {"order": 8}, tenant="south")
    plain = bench.enqueue("b")
    bench.sql.execute("UPDATE compactory.jobs_live SET created_at = '2024-01-31T10:00Z' WHERE id = %s", [other])
    change_jobs(bench.sql, Act.CANCEL, [plain])
    moment = datetime(2024, 1, 31, 10, tzinfo=UTC)
    assert found(bench) == [plain, other, order]
    assert found(bench, state="cancelled") == [plain]
    assert found(bench, type="b") == [plain, other]
    assert found(bench, group="g") == found(bench, tenant="north") == [order]
    assert found(bench, payload='{"lines": [2]}') == found(bench, payload='{"order": 7}', type="a") == [order]
    assert found(bench, payload='{"order": 7}', type="b") == []
    assert found(bench, since=moment, until=moment + timedelta(seconds=1)) == [other]
    assert found(bench, until=moment) == []


def test_pages_of_jobs_meet_each_job_once(bench: Bench) -> None:
    """Also those that end or are enqueued between two pages."""
    ids = enqueued(bench)
    pages, before_id = [], None
    while page := jobs_where(bench.sql, before_id=before_id, limit=6):
        before_id = page[-1].id
        pages += [row.id for row in page]
        change_jobs(bench.sql, Act.CANCEL, [page[0].id])
        bench.enqueue("a")
    assert pages == ids[::-1]


def test_a_change_of_many_pages_reaches_every_match_and_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_PAGE", 7)
    ids = enqueued(bench)
    spared = bench.enqueue("a", tenant="south")
    bench.sql.execute("UPDATE compactory.jobs_live SET state = 'failed', finished_at = now()")
    assert count_jobs(bench.sql, JobFilter(payload="{}", until=LATER), Act.RETRY) == (21, True)
    bench.sql.execute("UPDATE compactory.jobs_live SET payload = '[1, 2]' WHERE id <> %s", [spared])
    assert change_jobs(bench.sql, Act.RETRY, where=JobFilter(payload="[1]")) == len(ids)
    assert bench.state(spared) == "failed"
    assert change_jobs(bench.sql, Act.CANCEL, where=JobFilter(type="a")) == len(ids)
    assert change_jobs(bench.sql, Act.RETRY, where=JobFilter(type="a")) == 1
    assert change_jobs(bench.sql, Act.RETRY, where=JobFilter(type="a", state="cancelled")) == len(ids)


def test_no_ids_are_not_all_jobs(bench: Bench) -> None:
    job = enqueued(bench)[0]
    assert change_jobs(bench.sql, Act.CANCEL, []) == 0
    assert jobs_where(bench.sql, []) == []
    assert bench.state(job) == "scheduled"


def test_waiting_jobs_run_now(bench: Bench) -> None:
    """A job that waits for its time, a later one of its group, and a job that waits for a retry."""
    bench.jobs.handler("a")(lambda job: None)
    first, second = (bench.enqueue("a", group="g", run_at=LATER) for _ in range(2))
    retried, spared = (bench.enqueue("a", run_at=LATER) for _ in range(2))
    bench.sql.execute("UPDATE compactory.jobs_live SET attempt = 3 WHERE id = %s", [retried])
    bench.executor()
    assert change_jobs(bench.sql, Act.RUN_NOW, [second, retried]) == 2
    bench.wait_for(retried, "succeeded")
    assert jobs_where(bench.sql, [retried])[0].attempt == 4  # the attempts before count
    assert (bench.state(first), bench.state(second)) == ("scheduled", "scheduled")
    assert count_jobs(bench.sql, JobFilter(group="g"), Act.RUN_NOW) == (1, True)
    assert change_jobs(bench.sql, Act.RUN_NOW, where=JobFilter(group="g")) == 1
    bench.wait_for(second, "succeeded")
    assert bench.state(first) == "succeeded"
    assert change_jobs(bench.sql, Act.RUN_NOW, [first]) == 0
    assert bench.state(spared) == "scheduled"


def test_more_than_ten_thousand_jobs_are_estimated(bench: Bench) -> None:
    """Exact up to 10,000; beyond within a factor of two, where the table was analyzed."""
    insert = (
        "INSERT INTO compactory.jobs_live (type, place, payload, run_at)"
        " SELECT %s, i, '{}', now() FROM generate_series(1, %s) AS i"
    )
    bench.sql.execute(insert, ["a", 10_000])
    bench.sql.execute(insert, ["b", 30_000])
    bench.sql.execute("ANALYZE compactory.jobs_live")
    with closing(open_jobs(checked_url(bench.url).conninfo, "operator")) as connection:
        for _ in range(7):  # also once the statement is prepared
            assert count_jobs(connection, JobFilter(type="a")) == (10_000, True)
        jobs, is_exact = count_jobs(connection, JobFilter(type="b"))
    assert not is_exact
    assert 15_000 < jobs < 60_000

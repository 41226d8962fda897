"""Operators' orders for many jobs beside rounds of executors, which lock rows in an order of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from compactory.errors import OrderRefused
from compactory_connectors.jobs import NewJob
from compactory_connectors.jobs.operators import cancel, retry
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


def ordered(bench: Bench, act: Callable[..., int], ids: list[int]) -> int:
    with closing(open_jobs(checked_url(bench.url).conninfo, "operator")) as connection:
        return act(connection, ids)


@pytest.mark.parametrize("act", [cancel, retry])
def test_orders_for_many_jobs_do_not_deadlock_with_a_round(bench: Bench, act: Callable[..., int]) -> None:
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
        assert ordered(bench, cancel, ids[::2]) == len(ids) // 2


def test_a_job_that_stays_locked_is_named_and_the_others_are_cancelled(bench: Bench) -> None:
    ids = enqueued(bench, groups=True)

    def impatient(connection: psycopg.Connection[Any], jobs: list[int]) -> int:
        connection.execute("SET lock_timeout = '200ms'")
        return cancel(connection, jobs)

    with psycopg.connect(bench.url) as holder:
        holder.execute(TOUCH, [ids[4]])
        with pytest.raises(OrderRefused, match=rf"^1 of 10 jobs is locked .* {ids[4]}"):
            ordered(bench, impatient, ids[::2])
    assert [job for job in ids[::2] if bench.state(job) != "cancelled"] == [ids[4]]


def test_a_locked_job_whose_unique_key_was_taken_is_named_and_the_others_run_again(bench: Bench) -> None:
    """The other jobs were changed before; the order says so, and executors hear of them."""
    bench.jobs.declare("a")
    with bench.sql.transaction():
        taken, other = bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", unique_key="k"), NewJob(type="a")])
        bench.sql.execute("UPDATE compactory.jobs_live SET state = 'failed', attempt = 1")
    with psycopg.connect(bench.url) as holder, ThreadPoolExecutor() as pool:
        holder.execute(TOUCH, [taken])
        operator = pool.submit(ordered, bench, retry, [taken, other])
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
            orders.append(pool.submit(ordered, bench, cancel, ids[:: 1 if n % 2 else -1]))
        for order in orders:
            order.result(30)
    bench.wait_for_all()
    assert running.board.picture()["detail"] is None

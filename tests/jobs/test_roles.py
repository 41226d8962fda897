"""Enqueuer and executor work with just the rights of ``sql roles --for jobs``, and say which one is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import Job, JobExecutor, Jobs, Retry
from compactory_connectors.jobs.operators import Act, change_jobs, pause, resume
from compactory_connectors.postgres.operator_log import operator_log
from compactory_connectors.schema import grant, plan_jobs_grants
from tests.jobs.harness import Bench
from tests.source.workload import wait_until

TABLES = ("jobs", "jobs_live", "jobs_finished", "job_executors", "job_ticks")


@pytest.fixture
def roles(bench: Bench, unique: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """URLs of an enqueuer and an executor."""
    names = unique("enqueuer"), unique("executor")
    for _ in range(2):  # running it again changes nothing
        grant(bench.sql, plan_jobs_grants(bench.sql, *names))
    place = urlsplit(bench.url)
    yield tuple(f"postgresql://{name}@{place.hostname}:{place.port}{place.path}" for name in names)
    for name in names:
        bench.sql.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def test_enqueuer_and_executor_need_no_more(bench: Bench, roles: tuple[str, str]) -> None:
    enqueuer, executor = roles
    jobs = Jobs()

    @jobs.handler("a", retry=Retry(max_attempts=1))
    def handle(job: Job, conn: psycopg.Connection) -> None:
        if job.payload:
            raise ValueError("always")
        jobs.enqueue(conn, "a", {"fails": 1}, group="g")

    with psycopg.connect(enqueuer) as conn:
        first = jobs.enqueue(conn, "a", group="g")
    with JobExecutor(executor, jobs):
        bench.wait_for(first, "succeeded")
        (second,) = bench.column("SELECT id FROM compactory.jobs WHERE id <> %s", first)
        bench.wait_for(second, "failed")
    with JobExecutor(executor, jobs, keep=timedelta(0)) as expiring:
        wait_until(lambda: bench.count(f"compactory.jobs WHERE id = {first}") == 0, what="the first job to expire")
        assert expiring.board.picture()["detail"] is None
    with psycopg.connect(executor, autocommit=True) as operator:
        assert change_jobs(operator, Act.RETRY, [second]) == 1
        assert change_jobs(operator, Act.CANCEL, [second]) == 1
        assert pause(operator, "a").has_changed
        assert resume(operator, "a")
        assert {line.action for line in operator_log(operator)} == {"retry", "cancel", "pause", "resume"}
        for statement in ("DELETE FROM compactory.operator_log", "UPDATE compactory.operator_log SET count = 0"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute(statement)


def test_an_enqueuer_can_do_nothing_else(bench: Bench, roles: tuple[str, str]) -> None:
    with psycopg.connect(roles[0], autocommit=True) as conn:
        for table in TABLES:
            for statement in (f"SELECT FROM compactory.{table}", f"DELETE FROM compactory.{table}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement)


def test_a_role_that_may_not_enqueue_is_told_which_may(bench: Bench, roles: tuple[str, str]) -> None:
    bench.sql.execute(f'REVOKE USAGE ON SCHEMA compactory FROM "{urlsplit(roles[0]).username}"')
    with (
        psycopg.connect(roles[0]) as conn,
        pytest.raises(
            ConfigError, match=r"role '.*' may not use the jobs of database .*`compactory sql roles --for jobs`"
        ),
    ):
        Jobs().enqueue(conn, "a")


def test_one_right_less_and_the_executor_names_it(bench: Bench, roles: tuple[str, str]) -> None:
    role = urlsplit(roles[1]).username
    bench.sql.execute(f'REVOKE DELETE ON compactory.jobs_live FROM "{role}"')
    bench.jobs.handler("a")(lambda job: None)
    with pytest.raises(ConfigError, match=r"GRANT DELETE ON TABLE compactory.jobs_live TO"):
        JobExecutor(roles[1], bench.jobs).start()

"""Handlers that raise what nobody expects, and settings that could not work: the executor goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import Job, JobExecutor, Jobs, Retry, Snooze
from tests.jobs.harness import Bench
from tests.source.workload import wait_until


@pytest.mark.parametrize("seconds", [timedelta(minutes=5), float("nan"), float("inf"), 1e300, None, "10"])
def test_a_snooze_that_is_no_number_of_seconds_fails_the_attempt(bench: Bench, seconds: Any) -> None:
    @bench.jobs.handler("a", retry=Retry(max_attempts=1))
    def handle(job: Job) -> None:
        raise Snooze(seconds)

    bench.executor()
    job = bench.enqueue("a")
    bench.wait_for(job, "failed")
    (error,) = bench.column("SELECT last_error FROM compactory.jobs WHERE id = %s", job)
    assert "Snooze" in error
    assert "seconds" in error


def test_a_snooze_until_a_time_that_has_passed_runs_the_job_at_once(bench: Bench) -> None:
    ran: list[int] = []

    @bench.jobs.handler("a")
    def handle(job: Job) -> None:
        ran.append(job.id)
        if len(ran) == 1:
            raise Snooze(-3600)

    bench.executor()
    job = bench.enqueue("a")
    bench.wait_for(job, "succeeded")
    assert ran == [job, job]


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_ends_the_process_only_fails_its_attempt(bench: Bench, ending: type[BaseException]) -> None:
    @bench.jobs.handler("exit", retry=Retry(max_attempts=1))
    async def leave(job: Job) -> None:
        raise ending("enough")

    @bench.jobs.handler("task", retry=Retry(max_attempts=1))
    async def leave_within(job: Job) -> None:
        await asyncio.create_task(bench.jobs.handlers["exit"].function(job))

    @bench.jobs.handler("waits")
    async def wait(job: Job) -> None:
        while bench.state(left) != "failed" or bench.state(within) != "failed":
            await asyncio.sleep(0.01)

    executor = bench.executor()
    waiting, left, within = bench.enqueue("waits", run_at=None), bench.enqueue("exit"), bench.enqueue("task")
    for job in (left, within):
        bench.wait_for(job, "failed")
    bench.wait_for(waiting, "succeeded")
    assert executor.alive


def test_a_thread_survives_sys_exit(bench: Bench) -> None:
    @bench.jobs.handler("exit", retry=Retry(max_attempts=1))
    def leave(job: Job) -> None:
        sys.exit(3)

    executor = bench.executor(concurrency=1)
    jobs = [bench.enqueue("exit") for _ in range(3)]
    for job in jobs:
        bench.wait_for(job, "failed")
    wait_until(lambda: executor.alive, what="the threads")


@pytest.mark.parametrize("connected", [False, True])
def test_a_coroutine_that_did_not_run_is_no_success(bench: Bench, connected: bool) -> None:
    """As with a decorator that hides that the function is async."""

    async def work(job: Job) -> None: ...

    once = bench.jobs.handler("a", retry=Retry(max_attempts=1))
    once((lambda job, conn: work(job)) if connected else (lambda job: work(job)))  # noqa: PLW0108
    bench.executor()
    job = bench.enqueue("a")
    bench.wait_for(job, "failed")
    (error,) = bench.column("SELECT last_error FROM compactory.jobs WHERE id = %s", job)
    assert "make the handler an async def" in error


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_handler_that_ends_the_transaction_has_failed(bench: Bench, ending: str, is_async: bool) -> None:
    """Guarantee 14: else the job succeeds, and what was written is lost, or is there without it."""

    def work(job: Job, conn: psycopg.Connection) -> None:
        conn.execute("INSERT INTO effects (job) VALUES (%s)", [job.id])
        conn.execute(ending)

    async def work_async(job: Job, conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effects (job) VALUES (%s)", [job.id])
        await conn.execute(ending)

    bench.jobs.handler("a", retry=Retry(max_attempts=1))(work_async if is_async else work)
    bench.executor()
    job = bench.enqueue("a")
    bench.wait_for(job, "failed")
    (error,) = bench.column("SELECT last_error FROM compactory.jobs WHERE id = %s", job)
    assert "use conn.transaction()" in error


def test_a_handler_that_yields_is_refused() -> None:
    jobs = Jobs()

    @jobs.handler("a")
    async def work(job: Job) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigError, match="it yields, and nothing would run it"):
        JobExecutor("postgresql://user@localhost/nowhere", jobs)


@pytest.mark.parametrize(
    ("retry", "problem"),
    [
        ({"give_up": [ValueError]}, "give_up"),
        ({"give_up": (ValueError(),)}, "give_up"),
        ({"factor": 1e300}, "factor"),
        ({"factor": float("nan")}, "factor"),
        ({"limit": float("inf")}, "limit"),
        ({"first": float("nan")}, "first"),
    ],
)
def test_retries_that_could_not_work_are_refused_before_a_job_runs(retry: dict[str, Any], problem: str) -> None:
    jobs = Jobs()
    jobs.handler("a", retry=Retry(**retry))(lambda job: None)
    with pytest.raises(ConfigError, match=problem):
        JobExecutor("postgresql://user@localhost/nowhere", jobs)

"""Each part that keeps jobs right, taken out: the same histories end wrong, so the tests beside would see it."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from compactory_connectors.jobs import Job, Jobs, NewJob, Retry, claim_statements, membership, statements
from compactory_connectors.jobs.claims import Claims
from compactory_connectors.jobs.keeper import Keeper
from compactory_connectors.jobs.rows import Outcome, outcomes_json
from compactory_sql import query
from tests.jobs.harness import Bench
from tests.source.workload import wait_until


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """A query with a part of it replaced."""
    assert old in query(name)
    changed = query(name).replace(old, new)
    for module in (claim_statements, membership, statements):
        monkeypatch.setattr(module, "query", lambda asked: changed if asked == name else query(asked))


@pytest.mark.parametrize("checked", [True, False])
def test_a_stalled_attempt_can_not_complete_a_job_that_was_taken_over(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Guarantee 14: only who has the token ends an attempt; without that check the stalled one does."""
    with psycopg.connect(bench.url, autocommit=True) as conn:

        @bench.jobs.handler("a")
        def handle(job: Job) -> None:
            wait_until(lambda: ended, 20, "the end of the test")

        ended: list[int] = []
        job = bench.enqueue("a")
        bench.executor()
        bench.wait_for(job, "running")
        (token,) = bench.column("SELECT token FROM compactory.jobs WHERE id = %s", job)
        stale = outcomes_json([Outcome(id=job, token=token - 1, state="succeeded")])
        text = query("jobs/finish")
        if not checked:
            text = text.replace("j.token = o.token", "true")  # type: ignore[assignment]
        done = conn.execute(text, stale).fetchall()
        state = bench.state(job)
        ended.append(1)
        assert (done, state) == (([], "running") if checked else ([(job,)], "succeeded"))
    bench.wait_for(job, "succeeded")


@pytest.mark.parametrize("checked", [True, False])
def test_two_claims_of_one_group_see_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """Guarantee 15: a job that commits late, below one that runs, waits; without the check of its group both run."""
    go = threading.Event()
    began: list[int] = []

    def handle(job: Job) -> None:
        began.append(job.id)
        if job.group is not None:
            go.wait(30)

    if not checked:
        replaced(monkeypatch, "jobs/claim_groups", "r.state = 'running' AND", "false AND")
    jobs = [Jobs(), Jobs()]
    for each in jobs:
        each.handler("a")(handle)
        bench.executor(each)
    bench.jobs.declare("a")
    with psycopg.connect(bench.url) as late:
        first = bench.jobs.enqueue(late, "a", group="g", origin="1")
        second = bench.enqueue("a", group="g", origin="2")
        wait_until(lambda: second in began, what="the second's handler")
    bench.wait_for(bench.enqueue("a", origin="1"), "succeeded")  # claimed after the first was seen
    if not checked:
        wait_until(lambda: first in began, what="both at once")
    assert bench.state(first) == ("scheduled" if checked else "running")
    go.set()
    bench.wait_for_all()
    assert began.index(first) > began.index(second)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_session_that_was_lost_ends_before_its_job_begins_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, ended: bool
) -> None:
    """Guarantee 15: the client knows of the loss; the server goes on with a statement, and holds locks."""
    free: list[bool] = []

    def lose(job: Job, conn: psycopg.BaseConnection, row: tuple[bool] | None) -> None:
        free.append(row == (True,))
        if job.attempt == 1:
            conn.pgconn.send_query(b"SELECT pg_sleep(60)")
            conn.pgconn.finish()
            raise ConnectionError

    def function(job: Job, conn: psycopg.Connection) -> None:
        lose(job, conn, conn.execute("SELECT pg_try_advisory_xact_lock(1, 1)").fetchone())

    async def coroutine(job: Job, conn: psycopg.AsyncConnection) -> None:
        lose(job, conn, await (await conn.execute("SELECT pg_try_advisory_xact_lock(1, 1)")).fetchone())

    if not ended:
        monkeypatch.setattr(Keeper, "_end_sessions", lambda _keeper, _table, ended: ended)
    bench.jobs.handler("a", retry=Retry(first=0.01))({"function": function, "coroutine": coroutine}[kind])
    bench.executor()
    bench.wait_for(bench.enqueue("a"), "succeeded")
    assert free == [True, ended]
    bench.sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'")


@pytest.mark.parametrize("handed", [True, False])
def test_what_has_not_begun_is_handed_over(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch, handed: bool
) -> None:
    """After a rebalance another executor runs claimed jobs that had not begun, within two seconds."""
    if not handed:
        monkeypatch.setattr(Claims, "give_back", lambda *_: None)
    monkeypatch.setattr(
        Claims, "room", lambda self, ending=0: 1000 if self.assigned is not None and self.is_empty else 0
    )
    go = threading.Event()
    began: dict[int, float] = {}

    def handle(job: Job) -> None:
        began[job.id] = time.monotonic()
        if job.payload:
            go.wait(30)

    jobs = [Jobs(), Jobs()]
    for each in jobs:
        each.handler("a")(handle)
    bench.jobs.declare("a")
    with bench.sql.transaction():
        long = bench.jobs.enqueue(bench.sql, "a", {"long": 1})
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"{n}") for n in range(40)])
    one = bench.executor(jobs[0], concurrency=1)
    wait_until(lambda: long in began, what="the first")
    wait_until(lambda: bench.count("compactory.jobs_live WHERE state = 'running'") == 41, what="the claims")
    two = bench.executor(jobs[1])
    wait_until(lambda: [len(e.board.picture()["partitions"]) for e in (one, two)] == [50, 50], what="halves")
    joined = time.monotonic()
    with bench.sql.transaction():
        new = bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"{n}") for n in range(40)])
    theirs = {job for job in new if bench.place(job) % 100 in two.board.picture()["partitions"]}
    wait_until(lambda: theirs <= set(began), what="new jobs of the second executor")
    if handed:
        wait_until(lambda: len(began) >= 1 + 2 * len(theirs), what="those that were handed over")
        assert max(began.values()) - joined < 2.0
    assert len(began) == 1 + len(theirs) * (1 + handed)
    go.set()
    bench.wait_for_all()

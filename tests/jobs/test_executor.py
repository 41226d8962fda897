"""Executors on real Postgres: what is committed runs, as often and in the order that was promised."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from compactory.errors import ConfigError
from compactory_connectors.backoff import Backoff
from compactory_connectors.jobs import Cancel, Job, JobExecutor, Jobs, NewJob, Retry, Snooze, membership, upkeep
from compactory_connectors.jobs.attempts import Attempts
from compactory_connectors.jobs.claim_statements import ClaimStatements, Request
from compactory_connectors.jobs.handler_connection import AsyncConnections, KeptConnection, Unconnected
from compactory_connectors.jobs.keeper import Keeper
from compactory_connectors.jobs.membership import Membership
from compactory_connectors.jobs.operators import Act, change_jobs, jobs_where
from compactory_connectors.jobs.rows import Assigned, Claimed, Outcome
from compactory_connectors.jobs.statements import Commit, JobTable, open_jobs
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_connectors.postgres.position import Position
from tests.jobs.harness import Bench
from tests.source.workload import wait_until


class Invoice(BaseModel):
    """A payload."""

    number: int


def record(job: Job, conn: psycopg.Connection) -> None:
    conn.execute(
        'INSERT INTO effects (job, type, "group", attempt) VALUES (%s, %s, %s, %s)',
        [job.id, job.type, job.group, job.attempt],
    )


def effects(bench: Bench) -> list[int]:
    return bench.column("SELECT job FROM effects ORDER BY n")


def test_what_is_committed_runs_and_nothing_else(bench: Bench) -> None:
    """Guarantee 14: a job exists if and only if its transaction committed, savepoints included."""
    bench.jobs.handler("a")(record)
    bench.executor()
    with psycopg.connect(bench.url) as conn:
        bench.jobs.enqueue(conn, "a")
        conn.rollback()
        kept = [bench.jobs.enqueue(conn, "a")]
        with conn.transaction(force_rollback=True):
            bench.jobs.enqueue(conn, "a")
        row = conn.execute("SELECT compactory.enqueue('a')").fetchone()
        assert row is not None
        kept.append(row[0])
    bench.wait_for_all()
    assert sorted(effects(bench)) == kept
    assert [bench.state(job) for job in kept] == ["succeeded"] * 2


def test_handlers_of_every_kind_get_their_payload(bench: Bench) -> None:
    seen: dict[str, tuple[object, ...]] = {}

    @bench.jobs.handler("plain")
    def plain(job):
        seen["plain"] = (job.payload, job.attempt, job.group, job.tenant)

    @bench.jobs.handler("typed")
    def typed(job: Job[Invoice]) -> None:
        seen["typed"] = (job.payload,)

    @bench.jobs.handler("waiting")
    async def waiting(job: Job[Invoice]) -> None:
        await asyncio.sleep(0)
        seen["waiting"] = (job.payload,)

    @bench.jobs.handler("writing")
    async def writing(job: Job, conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effects (job) VALUES (%s)", [job.id])

    bench.executor()
    bench.enqueue("plain", {"x": [1]}, group="g", origin="o", tenant="t")
    for name in ("typed", "waiting"):
        bench.enqueue(name, {"number": "7"})
    written = [bench.enqueue("writing") for _ in range(3)]
    bench.wait_for_all()
    assert seen == {"plain": ({"x": [1]}, 1, "g", "t"), "typed": (Invoice(number=7),), "waiting": (Invoice(number=7),)}
    assert sorted(effects(bench)) == written


def test_effects_on_the_given_connection_happen_once_and_with_the_job(bench: Bench) -> None:
    """Guarantee 14: what a handler writes through its connection, jobs included, commits with its job or not at all."""

    @bench.jobs.handler("first", retry=Retry(first=0.01))
    def first(job: Job, conn: psycopg.Connection) -> None:
        record(job, conn)
        bench.jobs.enqueue(conn, "second")
        if job.attempt < 3:
            raise ValueError("not yet")

    bench.jobs.handler("second")(record)
    bench.executor()
    bench.enqueue("first")
    bench.wait_for_all()
    assert bench.column("SELECT type FROM effects ORDER BY n") == ["first", "second"]


def test_a_group_is_serial_in_order_of_ids_and_others_go_on(bench: Bench) -> None:
    """Guarantee 15: one job of a group at a time, across executors; a failing job holds its own group back only."""
    busy: set[str] = set()
    overlaps: list[int] = []
    broken = threading.Event()

    def handle(job: Job, conn: psycopg.Connection) -> None:
        assert job.group is not None
        if job.group in busy:
            overlaps.append(job.id)
        busy.add(job.group)
        time.sleep(0.001)
        busy.discard(job.group)
        if job.group == "g0" and not broken.is_set():
            raise ValueError("away")
        record(job, conn)

    jobs = [Jobs(), Jobs()]
    for each in jobs:
        each.handler("a", retry=Retry(first=0.05, factor=1))(handle)
        bench.executor(each)
    bench.jobs.declare("a")
    with bench.sql.transaction():  # origins differ, so that both executors have jobs of each group
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", group=f"g{n % 5}", origin=f"{n}") for n in range(100)])
    wait_until(lambda: bench.count("effects") == 80, what="the other groups")
    assert bench.column("SELECT count(*) FROM effects WHERE \"group\" = 'g0'") == [0]
    broken.set()
    bench.wait_for_all()
    assert overlaps == []
    for group in range(5):
        ran = bench.column('SELECT job FROM effects WHERE "group" = %s ORDER BY n', f"g{group}")
        assert ran == sorted(ran)
        assert len(ran) == 20


def test_a_failing_job_lets_its_group_pass_where_its_type_says_so(bench: Bench) -> None:
    @bench.jobs.handler("a", retry=Retry(first=0.2), on_failure="skip")
    def handle(job: Job, conn: psycopg.Connection) -> None:
        if job.payload and job.attempt == 1:
            raise ValueError("away")
        record(job, conn)

    bench.executor()
    first = bench.enqueue("a", {"fails": 1}, group="g")
    second = bench.enqueue("a", group="g")
    bench.wait_for_all()
    assert effects(bench) == [second, first]


def test_the_newest_supersedes_older_ones_of_its_group_and_type(bench: Bench) -> None:
    bench.jobs.handler("a")(record)
    bench.jobs.handler("b")(record)
    older = [bench.enqueue("a", group="g", last_only=True) for _ in range(30)]
    other = bench.enqueue("b", group="g")
    last = bench.enqueue("a", group="g", last_only=True)
    bench.executor()
    bench.wait_for_all()
    assert effects(bench) == [other, last]
    assert {bench.state(job) for job in older} == {"cancelled"}
    assert jobs_where(bench.sql, older[:1])[0].last_error == f"superseded by job {last}"


def test_a_unique_key_has_one_job_until_that_is_through(bench: Bench) -> None:
    go = threading.Event()

    @bench.jobs.handler("a")
    def handle(job: Job) -> None:
        go.wait(20)

    first = bench.enqueue("a", unique_key="k")
    assert bench.enqueue("a", unique_key="k") == first
    assert bench.enqueue("a", unique_key="other") != first
    bench.executor()
    bench.wait_for(first, "running")
    assert bench.enqueue("a", unique_key="k") == first
    go.set()
    bench.wait_for_all()
    assert bench.enqueue("a", unique_key="k") != first
    bench.wait_for_all()


def test_a_job_waits_for_its_time(bench: Bench) -> None:
    """By Postgres' clock."""
    at: list[float] = []
    bench.jobs.handler("a")(lambda job: at.append(time.monotonic()))
    bench.executor()
    began = time.monotonic()
    later = bench.enqueue("a", run_at=datetime.now(UTC) + timedelta(hours=1))
    bench.enqueue("a", run_at=datetime.now(UTC) + timedelta(seconds=0.7))
    bench.enqueue("a")
    wait_until(lambda: len(at) == 2, what="both")
    assert at[0] - began < 0.6 <= at[1] - began
    assert bench.state(later) == "scheduled"
    assert change_jobs(bench.sql, Act.CANCEL, [later]) == 1


def test_jobs_that_came_due_while_no_executor_ran_are_run_without_a_pause(bench: Bench) -> None:
    """More than one statement gives a position to: retries of an outage, for instance."""
    bench.jobs.handler("a")(lambda job: None)
    bench.sql.execute(
        "INSERT INTO compactory.jobs (type, place, payload, run_at)"
        " SELECT 'a', n, '{}', now() - interval '1 hour' FROM generate_series(1, 2500) AS n"
    )
    bench.executor()
    bench.wait_for_all(20)


def test_a_job_comes_due_though_the_servers_clock_was_set_back(bench: Bench) -> None:
    bench.enqueue("a", run_at=datetime.now(UTC) + timedelta(seconds=0.1))
    with closing(open_jobs(checked_url(bench.url).conninfo, "test")) as connection:
        table = JobTable(connection, connection, bench.register("a"), ["a"])
        table.claims._whole_at = datetime.now(UTC) + timedelta(hours=1)  # that was the time when it last looked
        request, all_of_them = Request(limit=1), Assigned((0,), 1)
        wait_until(lambda: table.claims.claim(request, all_of_them, Position.at(0, 0)).chains, 5, "the job")


def test_jobs_are_claimed_while_the_ends_of_others_are_committed(bench: Bench) -> None:
    """The commit waits for a lock; the thread that is free has the next job already."""
    goes_on, began = threading.Event(), []

    @bench.jobs.handler("a")
    def handle(job: Job) -> None:
        began.append(job.id)
        goes_on.wait(30)

    first = bench.enqueue("a")
    bench.executor(concurrency=1)
    wait_until(lambda: began == [first], what="the first job")
    second = bench.enqueue("a")
    with psycopg.connect(bench.url) as other:
        other.execute("SELECT FROM compactory.jobs_live WHERE id = %s FOR UPDATE", [first])
        goes_on.set()
        wait_until(lambda: began == [first, second], 4, "the second job")
        assert bench.state(first) == "running"
    bench.wait_for_all()


def test_ends_are_committed_although_the_claim_beside_them_fails(bench: Bench) -> None:
    """Guarantee 14: the executor knows which jobs have ended."""
    bench.jobs.declare("a")
    job = bench.enqueue("a")
    with (
        closing(open_jobs(checked_url(bench.url).conninfo, "test")) as connection,
        closing(open_jobs(checked_url(bench.url).conninfo, "test")) as ends_connection,
    ):
        table = JobTable(connection, ends_connection, bench.register("a"), ["a"])
        ((claimed,),) = table.claims.claim(Request(limit=1), Assigned((0,), 1), Position.at(0, 0)).chains
        commit = Commit()
        outcome = Outcome(id=job, token=claimed.token, state="succeeded")
        with pytest.raises(psycopg.errors.DivisionByZero), table.ends.finish([outcome], commit):
            connection.execute("SELECT 1 / 0")
    assert (commit.ids, bench.state(job)) == ({job}, "succeeded")


def test_a_job_that_commits_late_is_found(bench: Bench) -> None:
    """Guarantee 14: ids are given before commits; an executor goes back for a transaction that ran when it looked."""
    bench.jobs.handler("a")(record)
    bench.executor()
    with psycopg.connect(bench.url) as late:
        first = bench.jobs.enqueue(late, "a")
        for _ in range(5):
            job = bench.enqueue("a")
            bench.wait_for(job, "succeeded")
        late.commit()
    bench.wait_for(first, "succeeded", 5)


def test_a_dead_letter_keeps_its_traceback_and_comes_back(bench: Bench) -> None:
    """Guarantee 15: the group waits for a job that has failed for good, until an operator retries or discards it."""
    broken = True

    @bench.jobs.handler("a", retry=Retry(max_attempts=2, first=0.01))
    def handle(job: Job, conn: psycopg.Connection) -> None:
        if broken and job.payload:
            raise ValueError("the reason")
        record(job, conn)

    with capture_logs() as logs:
        bench.executor()
        poison = bench.enqueue("a", {"fails": 1}, group="g")
        second = bench.enqueue("a", group="g")
        given_up = bench.enqueue("a", {"fails": 1}, group="h")
        third = bench.enqueue("a", group="h")
        bench.wait_for(poison, "failed")
        bench.wait_for(given_up, "failed")
    told = {(entry["job"], entry["error"], entry["traceback"]) for entry in logs if entry["event"] == "a job failed"}
    assert told == {(job, "ValueError", f"compactory jobs show {job}") for job in (poison, given_up)}
    (row,) = jobs_where(bench.sql, [poison])
    assert row.attempt == 2
    assert "ValueError: the reason" in str(row.last_error)
    assert 'in handle\n    raise ValueError("the reason")' in str(row.last_error)
    broken = False
    assert bench.state(second) == "scheduled"
    assert change_jobs(bench.sql, Act.RETRY, [poison]) == 1
    assert change_jobs(bench.sql, Act.DISCARD, [given_up]) == 1
    bench.wait_for_all()
    assert bench.column("SELECT job FROM effects WHERE \"group\" = 'g' ORDER BY n") == [poison, second]
    assert bench.column("SELECT job FROM effects WHERE \"group\" = 'h'") == [third]
    assert bench.state(given_up) == "cancelled"


def test_a_payload_that_no_longer_fits_is_told_without_its_values(bench: Bench) -> None:
    @bench.jobs.handler("a", retry=Retry(max_attempts=1))
    def handle(job: Job[Invoice]) -> None: ...

    bench.executor()
    row = bench.sql.execute("""SELECT compactory.enqueue('a', '{"number": "s3cret"}')""").fetchone()
    assert row is not None
    bench.wait_for(row[0], "failed")
    text = str(jobs_where(bench.sql, [row[0]])[0].last_error)
    assert text.endswith("payload of job 'a' does not fit: number: int_parsing\n")
    assert "s3cret" not in text


def test_a_job_outlives_many_heartbeats(bench: Bench, impatient: None) -> None:
    """Its executor renews them as long as it lives; the job is not rescued, and its end counts."""
    go = threading.Event()
    bench.jobs.handler("a")(lambda job: go.wait(30))
    others = Jobs()
    others.handler("a")(lambda job: None)
    bench.executor()
    job = bench.enqueue("a")
    bench.wait_for(job, "running")
    bench.executor(others)
    long = f"compactory.job_executors WHERE clock_timestamp() > started_at + interval '{2 * membership.TTL} seconds'"
    wait_until(lambda: bench.count(long) == 2, what="twice the time after which a silent executor is taken for dead")
    assert jobs_where(bench.sql, [job])[0].attempt == 1
    go.set()
    bench.wait_for(job, "succeeded")
    assert bench.column("SELECT rescues FROM compactory.jobs WHERE id = %s", job) == [0]


def test_snoozed_cancelled_and_given_up_jobs(bench: Bench) -> None:
    @bench.jobs.handler("snooze", retry=Retry(max_attempts=1))
    def snooze(job: Job) -> None:
        if time.monotonic() < until:
            raise Snooze(0.1)

    @bench.jobs.handler("cancel")
    def cancelled(job: Job) -> None:
        raise Cancel("no such transport")

    @bench.jobs.handler("give up", retry=Retry(give_up=(KeyError,)))
    def give_up(job: Job) -> None:
        raise KeyError("k")

    until = time.monotonic() + 0.5
    bench.executor()
    snoozed, gone, failed = (bench.enqueue(name) for name in ("snooze", "cancel", "give up"))
    bench.wait_for(snoozed, "succeeded")
    bench.wait_for(gone, "cancelled")
    bench.wait_for(failed, "failed")
    assert jobs_where(bench.sql, [snoozed])[0].attempt == 1
    assert jobs_where(bench.sql, [gone])[0].last_error == "no such transport"


def test_attempts_that_take_too_long_end(bench: Bench) -> None:
    @bench.jobs.handler("waits", timeout=0.3, retry=Retry(max_attempts=1))
    async def waits(job: Job) -> None:
        await asyncio.sleep(60)

    @bench.jobs.handler("queries", timeout=0.3, retry=Retry(max_attempts=1))
    def queries(job: Job, conn: psycopg.Connection) -> None:
        conn.execute("SELECT pg_sleep(60)")

    bench.executor()
    for job in [bench.enqueue("waits"), bench.enqueue("queries")]:
        bench.wait_for(job, "failed", 10)
        assert str(jobs_where(bench.sql, [job])[0].last_error).startswith("timed out after 0.")


def test_a_running_job_is_cancelled_and_its_group_goes_on(bench: Bench, impatient: None) -> None:
    @bench.jobs.handler("a")
    async def handle(job: Job) -> None:
        if job.payload:
            await asyncio.sleep(60)

    bench.executor()
    job, after = bench.enqueue("a", {"long": 1}, group="g"), bench.enqueue("a", group="g")
    bench.wait_for(job, "running")
    assert change_jobs(bench.sql, Act.CANCEL, [job]) == 1
    bench.wait_for(job, "cancelled")
    bench.wait_for(after, "succeeded")


def test_stopping_finishes_what_runs_and_hands_the_rest_back(bench: Bench) -> None:
    go, began = threading.Event(), threading.Event()

    @bench.jobs.handler("a")
    def handle(job: Job, conn: psycopg.Connection) -> None:
        began.set()
        go.wait(20)
        record(job, conn)

    executor = bench.executor(concurrency=1)
    first, second = bench.enqueue("a", group="g"), bench.enqueue("a", group="g")
    assert began.wait(20)
    threading.Timer(0.3, go.set).start()
    assert executor.stop()
    assert (bench.state(first), bench.state(second)) == ("succeeded", "scheduled")
    assert jobs_where(bench.sql, [second])[0].attempt == 0
    assert bench.count("compactory.job_executors") == 0


def test_stopping_ends_coroutines_at_the_deadline(bench: Bench) -> None:
    @bench.jobs.handler("a")
    async def handle(job: Job) -> None:
        await asyncio.sleep(60)

    executor = bench.executor()
    job = bench.enqueue("a")
    bench.wait_for(job, "running")
    assert executor.stop(timeout=2.5)
    assert bench.state(job) == "scheduled"
    assert jobs_where(bench.sql, [job])[0].attempt == 0


def test_the_last_idle_thread_runs_jobs_while_the_others_are_busy_for_long(bench: Bench) -> None:
    may_end = threading.Event()
    bench.jobs.handler("long")(lambda _: may_end.wait(30))
    bench.jobs.handler("quick")(lambda _: None)
    bench.executor(concurrency=8)
    for job in [bench.enqueue("long") for _ in range(7)]:
        bench.wait_for(job, "running")
    try:
        bench.wait_for(bench.enqueue("quick"), "succeeded", 5.0)
    finally:
        may_end.set()


def test_jobs_do_not_wait_for_a_heartbeat(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notification of a job begins the round in which a heartbeat is due: the job is claimed first."""
    calls: list[str] = []
    for owner, name in ((Keeper, "_round"), (ClaimStatements, "claim"), (Membership, "beat")):
        monkeypatch.setattr(owner, name, noted(calls, getattr(owner, name)))
    monkeypatch.setattr(upkeep, "_BEAT_EVERY", 1.0)
    bench.jobs.handler("a")(lambda _: None)
    bench.executor()
    beats = 0
    while beats < 3:
        bench.wait_for(bench.enqueue("a"), "succeeded")
        beats = calls.count("beat")
    assert "claim beat" in " ".join(calls)


def noted(calls: list[str], method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with its name noted at each call."""

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(method.__name__)
        return method(*arguments, **options)

    return call


def test_two_executors_share_and_hand_over(bench: Bench, impatient: None) -> None:
    """Without Kafka, all partitions have an owner at any number of executors."""
    jobs = [Jobs(), Jobs()]
    for each in jobs:
        each.handler("a")(record)
    bench.jobs.declare("a")
    one, two = (bench.executor(each) for each in jobs)
    wait_until(lambda: {len(e.board.picture()["partitions"]) for e in (one, two)} == {50}, what="halves")
    assert not set(one.board.picture()["partitions"]) & set(two.board.picture()["partitions"])
    with bench.sql.transaction():
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"{n}") for n in range(200)])
    bench.wait_for_all()
    ran = [sum(e.board.picture()["runs"]["a"].values()) for e in (one, two)]
    assert min(ran) > 50
    assert one.stop()
    wait_until(lambda: len(two.board.picture()["partitions"]) == 100, 2.5, "all partitions")


def test_periodic_jobs_are_enqueued_once_a_tick(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in the whole fleet; the first tick is one after the first start."""
    from compactory_connectors.jobs.job import Periodic

    asked: set[tuple[int, datetime]] = set()
    tick = datetime(2026, 1, 1, tzinfo=UTC)

    def last_tick(self: Periodic, now: datetime) -> datetime:
        asked.add((threading.get_ident(), tick))
        return tick

    monkeypatch.setattr(upkeep, "_TICK_EVERY", 0.05)
    monkeypatch.setattr(Periodic, "last_tick", last_tick)
    for each in (Jobs(), Jobs(), Jobs()):
        each.handler("a")(record)
        each.periodic("0 3 * * *", "a", timezone="Europe/Tallinn")
        bench.executor(each)
    for number in range(3):
        for _ in range(2):  # asked once more, so that what came of the first time is done
            asked.clear()
            wait_until(lambda: len(asked) == 3, what="all executors")
        bench.wait_for_all()
        assert bench.count("compactory.jobs_finished") == number
        tick += timedelta(days=1)


def test_old_finished_jobs_are_forgotten(bench: Bench, impatient: None) -> None:
    bench.jobs.handler("a")(record)
    bench.executor(keep=timedelta(0))
    bench.enqueue("a")
    wait_until(lambda: bench.count("effects") == 1 and bench.count("compactory.jobs") == 0, what="retention")


@pytest.mark.parametrize("takes_connection", [True, False])
def test_a_type_without_history_leaves_its_failures_only(bench: Bench, takes_connection: bool) -> None:
    def succeed_or_fail(job: Job) -> None:
        if job.payload == "cancel":
            raise Cancel("no longer needed")
        if job.payload == "fail":
            raise ValueError("the reason")

    def with_connection(job: Job, _: psycopg.Connection) -> None:
        succeed_or_fail(job)

    handler = with_connection if takes_connection else succeed_or_fail
    bench.jobs.handler("a", retry=Retry(max_attempts=1), history=False)(handler)
    bench.jobs.handler("b")(lambda job: None)
    bench.executor()
    jobs = [bench.enqueue("a", payload) for payload in ("succeed", "cancel", "fail")]
    bench.wait_for(bench.enqueue("b"), "succeeded")
    wait_until(lambda: bench.column("SELECT id FROM compactory.jobs WHERE id = %s", jobs[0]) == [], what="the deletion")
    bench.wait_for(jobs[1], "cancelled")
    bench.wait_for(jobs[2], "failed")


def test_everything_that_is_set_wrongly_is_told_at_once(bench: Bench) -> None:
    jobs = Jobs()
    jobs.handler("a", timeout=-1, retry=Retry(max_attempts=0))(lambda job: None)
    jobs.handler("a", on_failure="never")(lambda: None)  # type: ignore[arg-type]
    jobs.periodic("61 * * * *", "b", timezone="Mars/Base")
    with pytest.raises(ConfigError) as refused:
        JobExecutor(bench.url, jobs, concurrency=0, topic="t", keep=timedelta(days=-1))
    text = str(refused.value)
    for part in (
        "timeout must be positive", "max_attempts must be at least 1", "has two handlers", "must take the job",
        "on_failure must be one of wait, skip", "no time zone 'Mars/Base'", "unknown type 'b'", "concurrency must be",
        "keep must not be negative", "needs all of kafka=, group_id= and topic=",
    ):  # fmt: skip
        assert part in text
    with pytest.raises(ConfigError, match="there is no handler"):
        JobExecutor(bench.url, Jobs())


def test_a_database_without_jobs_is_told_with_the_remedy(database: str) -> None:
    jobs = Jobs()
    jobs.handler("a")(lambda job: None)
    with pytest.raises(ConfigError, match="compactory sql install"):
        JobExecutor(database, jobs).start()


def test_an_executor_that_was_taken_for_dead_gets_no_session(bench: Bench) -> None:
    """Guarantee 15: it may wake up with jobs in hand before its keeper knows, and would run them twice at once."""
    conninfo = checked_url(bench.url).conninfo
    with pytest.raises(Unconnected):
        asyncio.run(AsyncConnections(conninfo).connection(999999))
    with pytest.raises(Unconnected):
        KeptConnection(conninfo).connection(999999)
    sessions = "pg_stat_activity WHERE application_name LIKE 'compactory-jobs 999999%'"
    wait_until(lambda: bench.count(sessions) == 0, what="the server to end what the client closed")


def test_an_executor_whose_id_a_restored_backup_gave_to_another_begins_anew(bench: Bench) -> None:
    """Guarantee 15: two of one id would end each other's sessions, and hand back jobs that the other one runs."""
    ran: list[int] = []
    bench.jobs.handler("a")(lambda job: ran.append(job.id))
    bench.executor()
    wait_until(lambda: bench.count("compactory.job_executors") == 1, what="the executor")
    bench.sql.execute("UPDATE compactory.job_executors SET name = 'elsewhere:1'")
    bench.sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%% keeper'")
    wait_until(lambda: bench.count("compactory.job_executors") == 2, what="an executor of another id")
    job = bench.enqueue("a", {})
    wait_until(lambda: ran == [job], what="the job")


def test_claims_that_fail_are_tried_with_growing_pauses(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, say: the executor filled its log with the reason, ten times a second."""
    pause, pauses = Backoff.pause, [0.0]
    monkeypatch.setattr(Backoff, "pause", lambda backoff: pauses.append(pause(backoff)) or pauses[-1])
    bench.sql.execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
           CREATE TRIGGER refuse BEFORE UPDATE ON compactory.jobs_live FOR EACH ROW EXECUTE FUNCTION refuse()"""
    )
    bench.jobs.handler("a")(lambda job: None)
    bench.enqueue("a", None)
    bench.executor()
    wait_until(lambda: max(pauses) > 0.5, 10, "pauses that grow")


def test_a_session_that_was_ended_while_it_was_idle_costs_no_attempt(bench: Bench) -> None:
    """By an idle_session_timeout of its role, a restart or a firewall: the handler was never called."""
    once = Retry(max_attempts=1)
    bench.jobs.handler("plain", retry=once)(lambda job, conn: conn.execute("INSERT INTO effects (job) VALUES (1)"))

    @bench.jobs.handler("async", retry=once)
    async def insert(job: Job, conn: Any) -> None:
        await conn.execute("INSERT INTO effects (job) VALUES (2)")

    bench.executor(concurrency=1)
    sessions = "pg_stat_activity WHERE application_name ~ 'handler$' AND datname = current_database()"
    for _ in range(2):
        for job in [bench.enqueue("plain", None), bench.enqueue("async", None)]:
            bench.wait_for(job, "succeeded")
        bench.column(f"SELECT pg_terminate_backend(pid) FROM {sessions}")
        wait_until(lambda: bench.count(sessions) == 0, what="the end of the handlers' sessions")


def test_handlers_that_get_no_connection_are_told(bench: Bench, unique: Callable[[str], str]) -> None:
    """With too few of them for all handlers, say: their jobs went back each second, in silence."""
    role = unique("few").replace("-", "_")
    place = urlsplit(bench.url)
    bench.sql.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    own, bench.url = bench.url, f"postgresql://{role}@{place.hostname}:{place.port}{place.path}"
    bench.jobs.handler("a")(lambda job, conn: None)
    with capture_logs() as logged:
        executor = bench.executor()
        wait_until(lambda: bench.count("compactory.job_executors") == 1, what="the executor")
        bench.sql.execute(f"ALTER ROLE {role} NOLOGIN")
        job = bench.enqueue("a", None)
        wait_until(
            lambda: any("not permitted to log in" in line.get("error", "") for line in logged), what="the reason"
        )
        bench.sql.execute(f"ALTER ROLE {role} LOGIN")
        bench.wait_for(job, "succeeded")
    assert executor.stop()
    bench.url = own
    bench.sql.execute(f"DROP ROLE {role}")


def test_a_handler_does_not_begin_when_others_may_have_its_job(bench: Bench) -> None:
    """Guarantee 15: a process that was frozen with jobs in hand wakes up before its keeper has looked, or after."""
    called: list[int] = []
    bench.jobs.handler("a")(lambda job: called.append(job.id))
    bench.jobs.handler("b")(lambda job, conn: called.append(job.id))
    ended: list[Outcome | None] = []
    attempts = Attempts(
        1, bench.jobs.handlers, checked_url(bench.url).conninfo, lambda item: ended.append(item.outcome)
    )
    attempts.start()
    before, now = (bench.register("a", "b") for _ in range(2))
    later = time.monotonic() + 60
    for kind, executor, lease, runs in (
        ("a", before, (before, 0.0), False),
        ("a", before, (now, later), False),
        ("b", before, (now, later), False),
        ("a", now, (now, later), True),
        ("b", now, (now, later), True),
    ):
        job = Claimed(
            1, kind, None, None, 0, 1, executor << 32, 0, False, "null", None, datetime.now(UTC), datetime.now(UTC)
        )
        attempts.lease = lease
        attempts.put([job])
        wait_until(lambda: ended, what="an end")
        assert called == [1] * runs
        assert runs or ended == [Outcome.back(job)]
        called.clear()
        ended.clear()
    assert attempts.stop(time.monotonic() + 10)

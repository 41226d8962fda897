"""What wakes a source, what happens when that is lost, and what idle tables cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest

from compactory_connectors.postgres.wakeup import Slept, Wakeup
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.config.selection import TableName, TableSelection
from compactory_connectors.source.runtime import schedule
from compactory_sql import WAKEUP_CHANNEL, WAKEUP_LOCK_CLASS
from tests.source.conftest import Bench
from tests.source.workload import TERMINALS, wait_until
from tests.stack.postgres_copies import new_server
from tests.stack.postgres_versions import needs

HOUR = 3_600_000
ASLEEP = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND mode = 'ExclusiveLock'"


def adopted(bench: Bench) -> None:
    bench.sql.execute("DROP TABLE terminal_acquirer; DROP FUNCTION stamp()")
    bench.sql.execute(TERMINALS)
    install(bench.sql)
    adopt(bench.sql, Adoption(table="terminal_acquirer", key=("terminal_id",)))


def selected(names: list[str]) -> TableSelection:
    return TableSelection(listed=tuple(TableName(None, name) for name in names))


def sleepers(bench: Bench) -> list[int]:
    """Pids of the connections that sleep for a table."""
    return [pid for (pid,) in bench.sql.execute(ASLEEP, [WAKEUP_LOCK_CLASS])]


def started(bench: Bench, **changes: Any) -> None:
    """An adopted table with one row, and a source that has published it and sleeps."""
    adopted(bench)
    bench.add("T1")
    bench.start(**changes)
    bench.wait_for_records(1)
    wait_until(lambda: sleepers(bench), what="sleep")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables whose writers notify are looked at as often as the others."""
    monkeypatch.setattr(schedule, "_NOTIFYING", 0.3)


def test_a_connection_that_is_ended_is_noticed_at_once(bench: Bench) -> None:
    """Guarantee 12: nobody would notify; the next session does not wait for the poll interval of an hour."""
    started(bench, poll_interval_ms=HOUR)
    (pid,) = sleepers(bench)
    bench.sql.execute("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: sleepers(bench) not in ([], [pid]), what="another session's sleep")
    bench.add("T2")
    bench.wait_for_records(2)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("lost", ["DROP TRIGGER zz_compactory_notify ON terminal_acquirer", "NOTIFY none"])
def test_writers_that_do_not_notify_are_polled(bench: Bench, lost: str) -> None:
    """The trigger is gone, or was replaced by one that says something else."""
    started(bench, poll_interval_ms=100)
    bench.sql.execute(lost)
    if lost.startswith("NOTIFY"):
        body = f"BEGIN PERFORM pg_notify('{WAKEUP_CHANNEL}', 'what?'); RETURN NULL; END"
        bench.sql.execute(
            f"CREATE OR REPLACE FUNCTION compactory.wake_source() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
        )
    bench.add("T2")
    bench.wait_for_records(2)


def test_writers_of_a_busy_table_need_not_notify(bench: Bench) -> None:
    """A NOTIFY at every commit would queue them on one lock of the whole cluster."""
    started(bench, poll_interval_ms=HOUR)
    with psycopg.connect(bench.url, autocommit=True) as listener:
        listener.execute(f"LISTEN {WAKEUP_CHANNEL}")
        commits = 2000
        with psycopg.connect(bench.url, autocommit=True) as writer:
            for number in range(commits):
                writer.execute("UPDATE terminal_acquirer SET acquirer_id = %s", [str(number)])
        heard = sum(1 for _ in listener.notifies(timeout=0))
    assert heard < commits / 4
    wait_until(lambda: str(commits - 1).encode() in (bench.records()[-1][1] or b""), what="the last value")
    wait_until(lambda: sleepers(bench), what="sleep")


def test_two_sources_of_one_table_are_both_woken(bench: Bench) -> None:
    """One of them sleeps; the other hears the same notifications, and does not take it for an open transaction."""
    started(bench, poll_interval_ms=HOUR)
    calls = bench.connector().name
    other = bench.start(poll_interval_ms=HOUR, name=f"{calls}other", topic_prefix=f"{bench.prefix}other-")
    wait_until(lambda: other.source.status().tables, what="the other source's table")
    wait_until(lambda: other.source.status().tables[0].rows_total == 1, what="the first row")
    polls = other.source.status().tables[0].polls_total
    for number in range(2, 5):
        bench.add(f"T{number}")
        bench.wait_for_records(number)
        wait_until(lambda number=number: other.source.status().tables[0].rows_total == number, 5, "the other's row")
    assert other.source.status().tables[0].polls_total < polls + 12


@pytest.fixture
def neighbour(bench: Bench) -> Iterator[psycopg.Connection]:
    """All that Postgres sees of another source of the adopted table, which has one row."""
    adopted(bench)
    bench.add("T1")
    with psycopg.connect(bench.url, autocommit=True) as connection:
        yield connection


def lock(neighbour: psycopg.Connection, function: str = "pg_try_advisory_lock") -> None:
    """Sleep, or let go of it: then nobody notifies."""
    key = "'terminal_acquirer'::regclass::oid::int8::bit(32)::int4"
    neighbour.execute(f"SELECT {function}({WAKEUP_LOCK_CLASS}, {key})")


def first(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], None]) -> None:
    """Do something just before a wake-up's method is called for the first time."""
    method, calls = getattr(Wakeup, name), count()

    def after_action(wakeup: Wakeup, *args: Any) -> Any:
        if next(calls) == 0:
            action()
        return method(wakeup, *args)

    monkeypatch.setattr(Wakeup, name, after_action)


def test_a_commit_before_a_source_listens(
    bench: Bench, neighbour: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer notified the source that slept; the one that polled just before it must look once more."""
    lock(neighbour)
    first(monkeypatch, "sleep_for", lambda: bench.add("T2"))
    bench.start(poll_interval_ms=HOUR)
    bench.wait_for_records(1)
    bench.wait_for_records(2)


def test_a_silent_commit_before_another_source_sleeps(
    bench: Bench, neighbour: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer keeps both awake; when it has ended, the other is the first that sleeps."""
    with psycopg.connect(bench.url) as writer:
        writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T2', 'A')")

        def end_and_sleep() -> None:
            writer.commit()
            lock(neighbour)

        first(monkeypatch, "_sleepers", end_and_sleep)
        bench.start(poll_interval_ms=HOUR)
        bench.wait_for_records(1)
        bench.wait_for_records(2)


@pytest.mark.parametrize("again", [False, True])
def test_another_source_that_sleeps_no_more(
    bench: Bench, neighbour: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """It ended, or was awake for a moment: nobody notified, and the source that relied on it finds out."""
    sleep, shared = Wakeup.sleep_for, threading.Event()

    def observed(wakeup: Wakeup, keys: Iterable[int]) -> Slept:
        slept = sleep(wakeup, keys)
        if slept.shared:
            shared.set()
        return slept

    monkeypatch.setattr(Wakeup, "sleep_for", observed)
    lock(neighbour)
    bench.start(poll_interval_ms=HOUR)
    assert shared.wait(30)
    lock(neighbour, "pg_advisory_unlock")
    bench.add("T2")
    if again:
        lock(neighbour)
    bench.wait_for_records(2)
    bench.add("T3")
    bench.wait_for_records(3)


def test_a_table_that_is_made_again_while_the_source_sleeps(bench: Bench) -> None:
    """Guarantee 8: what is remembered of its predecessor, a lock among it, is let go."""
    started(bench, poll_interval_ms=100, table_poll_interval_ms=200)
    adopted(bench)
    bench.add("again")
    wait_until(lambda: b"again" in (bench.records()[-1][1] or b""), what="the new table's row")
    wait_until(lambda: len(sleepers(bench)) == 1, what="one lock")


def test_only_the_table_that_was_written_to_is_polled(bench: Bench) -> None:
    """Nine others sleep on."""
    install(bench.sql)
    names = [f"directory{number}" for number in range(10)]
    for name in names:
        bench.sql.execute(TERMINALS.replace("terminal_acquirer", name).replace("stamp()", f"stamp_{name}()"))
        adopt(bench.sql, Adoption(table=name, key=("terminal_id",)))
    running = bench.start(selection=selected(names), poll_interval_ms=HOUR)
    wait_until(lambda: len(sleepers(bench)) == 10, what="ten tables' sleep")
    polls = calmed(lambda: {table.table: table.polls_total for table in running.source.status().tables})
    bench.sql.execute("INSERT INTO directory3 (terminal_id, acquirer_id) VALUES ('T', 'A')")
    wait_until(lambda: sum(table.rows_total for table in running.source.status().tables) == 1, 5, "the row")
    more = {table.table for table in running.source.status().tables if table.polls_total > polls[table.table]}
    assert more == {"public.directory3"}


def calmed(look: Callable[[], dict[str, int]], seconds: float = 2.0) -> dict[str, int]:
    """What ``look`` gives, once it has been the same for some seconds."""
    found, since = look(), time.monotonic()

    def same() -> bool:
        nonlocal found, since
        if (now := look()) != found:
            found, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    wait_until(same, what="calm")
    return found


@contextmanager
def commits(url: str) -> Iterator[None]:
    """Somebody else's, all the time: every snapshot is another one."""
    stop = threading.Event()

    def commit() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE other (n int)")
            while not stop.wait(0.01):
                connection.execute("INSERT INTO other VALUES (1)")

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("busy", [False, True])
def test_idle_tables_cost_one_statement_for_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, busy: bool, request: pytest.FixtureRequest
) -> None:
    """Thirty tables that nobody adopted, polled ten times a second while they change."""
    names = [f"directory{number}" for number in range(30)]
    for name in names:
        bench.sql.execute(TERMINALS.replace("terminal_acquirer", name).replace("stamp()", f"stamp_{name}()"))
    bench.start(selection=selected(names), poll_interval_ms=100)
    if busy:
        other = commits(bench.url)
        other.__enter__()
        request.addfinalizer(lambda: other.__exit__(None, None, None))
    asked: list[float] = []
    execute = WatchedConnection.execute

    def count(connection: WatchedConnection, *args: Any, **kwargs: Any) -> Any:
        asked.append(time.monotonic())
        return execute(connection, *args, **kwargs)

    monkeypatch.setattr(WatchedConnection, "execute", count)

    def calm() -> bool:
        time_ago = time.monotonic() - 3.0
        return bool(asked) and asked[0] < time_ago and sum(at > time_ago for at in asked) <= 15

    wait_until(calm, what="at most five statements a second")


@pytest.fixture
def short_queue(unique: Callable[[str], str]) -> Iterator[str]:
    """A database of a server whose queue of notifications is soon full."""
    needs(17)
    server = new_server(settings={"max_notify_queue_pages": "64"})
    server.start()
    try:
        yield server.url()
    finally:
        server.remove()


def _fill_queue(bench: Bench, most: int = 1000) -> None:
    for _ in range(most):
        bench.sql.execute("SELECT pg_notify('other', n || repeat('x', 1000)) FROM generate_series(1, 10) n")


@pytest.mark.usefixtures("soon")
def test_a_queue_that_fills_makes_no_writer_fail(short_queue: str, kafka: str, unique: Callable[[str], str]) -> None:
    """Somebody listens and does not read: with a full queue every commit that notifies is refused."""
    bench = Bench(short_queue, kafka, f"{unique('s')}-")
    try:
        started(bench, poll_interval_ms=100)
        with psycopg.connect(short_queue) as stuck:
            stuck.execute("LISTEN other")
            stuck.commit()
            stuck.execute("SELECT 1")
            _fill_queue(bench, 30)
            wait_until(lambda: not sleepers(bench), 10, "nobody's sleep")
            with pytest.raises(psycopg.Error, match="NOTIFY queue"):
                _fill_queue(bench)
            bench.add("T2")
            bench.wait_for_records(2)
        wait_until(lambda: sleepers(bench), 20, "sleep")
    finally:
        bench.close()

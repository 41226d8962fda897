"""A server that crashes takes back what was not flushed, published or not: the topic ends as the table is then."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator

import psycopg
import pytest

from compactory.errors import Unreachable
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.offset_parts import Phase, ResendReason
from compactory_connectors.source.offsets.topics import stored_values
from tests.source.conftest import Bench
from tests.source.harness import STAMP, Feed, add, expected
from tests.source.workload import TERMINALS, table_state, wait_until
from tests.stack.postgres_copies import new_server


@pytest.fixture(scope="module")
def fragile() -> Iterator[PostgresServer]:
    """A server whose WAL stays in memory for long, to be killed."""
    server = new_server(settings={"fsync": "off", "wal_writer_delay": "10s", "autovacuum": "off"})
    server.start()
    yield server
    server.remove()


@pytest.fixture
def url(fragile: PostgresServer, unique: Callable[[str], str], adopted: bool) -> str:
    """A database on it with the table; what made it is on disk."""
    name = unique("db").replace("-", "_")
    with psycopg.connect(fragile.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    with psycopg.connect(fragile.url(name), autocommit=True) as connection:
        connection.execute(TERMINALS)
        if adopted:
            connection.execute(STAMP)
        add(connection, "T1", "T2", "T3")
    return fragile.url(name)


@pytest.fixture
def feed(url: str, adopted: bool) -> Iterator[Feed]:
    feed = Feed(url, adopted=adopted)
    yield feed
    feed.close()


def settled(feed: Feed) -> None:
    """Poll until a crash can take nothing back of what was sent."""
    with psycopg.connect(feed.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    feed.settle()
    feed.settle()
    assert feed.reader.offset.is_durable


def crash(server: PostgresServer) -> None:
    """Kill the server and start it, once the last of its backends has let go of the shared memory."""
    server.kill()
    wait_until(lambda: _started(server), what="the start of a killed server")


def _started(server: PostgresServer) -> bool:
    try:
        server.start()
    except Unreachable:
        return False
    return True


def change_without_flush(url: str) -> None:
    """Committed and seen by everybody, but not on disk: a new row, another value, a deactivation."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        add(connection, "ghost")
        connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'lost' WHERE id = 1")
        connection.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 2")


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_what_was_sent_and_then_lost_is_put_right(
    fragile: PostgresServer, url: str, feed: Feed, restarted: bool
) -> None:
    """Guarantee 8: the older version of a row has an old xmin, a lost row leaves a key behind."""
    settled(feed)
    change_without_flush(url)
    feed.settle()
    published = dict(feed.topic)
    if restarted:
        feed.restart()
        feed.settle()
    crash(fragile)
    assert expected(url) != published, "the crash lost nothing"
    with psycopg.connect(url, autocommit=True) as connection:
        add(connection, *(f"after {number}" for number in range(80)))
    feed.restart()
    feed.settle()
    assert feed.topic == expected(url)
    feed.restart()
    assert feed.settle() == []


def test_only_what_differs_is_sent_after_a_crash(fragile: PostgresServer, url: str, feed: Feed) -> None:
    """Guarantee 9: no record goes out that the topic has already."""
    settled(feed)
    change_without_flush(url)
    feed.settle()
    crash(fragile)
    feed.restart()
    assert feed.reader.offset.resend_reason is ResendReason.CRASH
    assert sorted(key for key, _ in feed.settle()) == [b"1", b"2", b"4"]
    assert feed.topic == expected(url)


def test_a_crash_that_lost_nothing_sends_nothing(fragile: PostgresServer, feed: Feed) -> None:
    """Guarantee 9: it is compared all the same, for what started may be a backup."""
    settled(feed)
    crash(fragile)
    feed.restart()
    assert feed.reader.offset.phase is Phase.COMPARING
    assert feed.settle() == []


def test_a_backend_that_crashed_costs_nothing(url: str, feed: Feed) -> None:
    """The server recovers, and the same postmaster says so: only ids were lost."""
    settled(feed)
    with psycopg.connect(url) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT")
        victim.close()
    wait_until(
        lambda: _restarted(feed) and feed.reader.offset.resend_reason is ResendReason.CRASH, what="the end of recovery"
    )
    assert feed.reader.offset.phase is not Phase.COMPARING
    assert feed.settle() == []


def _restarted(feed: Feed) -> bool:
    try:
        feed.restart()
    except psycopg.OperationalError:
        return False
    return True


def test_a_clean_restart_costs_nothing(fragile: PostgresServer, url: str, feed: Feed) -> None:
    """A shutdown flushes everything: what was sent a moment before is neither compared nor sent again."""
    settled(feed)
    change_without_flush(url)
    feed.settle()
    fragile.stop()
    fragile.start()
    assert feed.topic == expected(url)
    feed.restart()
    assert feed.reader.offset.phase is not Phase.COMPARING
    assert feed.settle() == []
    with psycopg.connect(url, autocommit=True) as connection:
        add(connection, "next")
    assert len(feed.settle()) == 1


def test_an_unlogged_table_is_empty_after_a_crash(fragile: PostgresServer, url: str, feed: Feed) -> None:
    """Guarantee 8: however long ago its rows were written."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE terminal_acquirer SET UNLOGGED")
    feed.restart()
    feed.settle()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    feed.settle()
    crash(fragile)
    feed.restart()
    feed.settle()
    assert expected(url) == {}
    assert feed.topic == {}


def test_a_running_source_puts_right_what_a_crash_took_back(
    fragile: PostgresServer, kafka: str, unique: Callable[[str], str]
) -> None:
    """Guarantee 8: it finds the server again, compares, and counts what it sends for that reason."""
    name = unique("db").replace("-", "_")
    with psycopg.connect(fragile.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    bench = Bench(fragile.url(name), kafka, f"{unique('c')}-")
    bench.add("T1", "T2", "T3")
    running = bench.start(soft_delete=True)
    wait_until(lambda: _topic(bench) == _living(bench.url), what="the first load")
    bench.sql.execute("CHECKPOINT")
    wait_until(lambda: _stored(bench).is_durable, what="the offset of what is on disk")
    change_without_flush(bench.url)
    wait_until(lambda: _topic(bench) == _living(bench.url), what="what will be lost")
    bench.sql.close()
    crash(fragile)
    assert _topic(bench) != _living(bench.url), "the crash lost nothing"
    wait_until(lambda: _topic(bench) == _living(bench.url), what="the end of the repair")
    (table,) = running.source.status().tables
    assert table.resent == {"crash": 2}  # two rows; the lost row's key was swept
    running.stop()


def _topic(bench: Bench) -> dict[int, str]:
    latest = {int(key or b""): json.loads(value)["acquirerId"] if value else None for key, value in bench.records()}
    return {key: value for key, value in latest.items() if value is not None}


def _stored(bench: Bench) -> SourceOffset:
    (value,) = [value for key, value in stored_values(bench.kafka).items() if bench.prefix.encode() in key]
    return SourceOffset.loads(value)


def _living(url: str) -> dict[int, str]:
    return {number: acquirer for number, (acquirer, active) in table_state(url).items() if active}

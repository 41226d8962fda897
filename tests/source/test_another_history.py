"""Servers whose past is another one than what was published: each is recognised, and the topic ends as the table.

Every test publishes changes that the server found afterwards never had, and lets that server give out more transaction
ids than the first one had: only its identity tells.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.source.offsets.offset_parts import ResendReason
from tests.source.harness import STAMP, Feed, add, expected
from tests.source.workload import TERMINALS, wait_until
from tests.stack.postgres_copies import base_backup, empty_like, new_server, put_back, run, set_aside, upgraded

ARCHIVED = {
    "fsync": "off",
    "archive_mode": "on",
    "archive_command": "mkdir -p ../archive && cp %p ../archive/%f",
}
CONSUME = "DO $$ BEGIN FOR n IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"


@pytest.fixture
def servers() -> Iterator[list[PostgresServer]]:
    """Every server of a test; the first one runs and archives its WAL."""
    servers = [new_server(settings=ARCHIVED)]
    servers[0].start()
    yield servers
    for server in servers:
        server.remove()


@pytest.fixture
def feed(servers: list[PostgresServer], adopted: bool) -> Iterator[Feed]:
    """A feed that has published the first rows."""
    with psycopg.connect(servers[0].url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE d")
    with psycopg.connect(servers[0].url("d"), autocommit=True) as connection:
        connection.execute(TERMINALS)
        if adopted:
            connection.execute(STAMP)
        add(connection, "T1", "T2", "T3")
    feed = Feed(servers[0].url("d"), adopted=adopted)
    feed.settle()
    feed.settle()
    yield feed
    feed.close()


def publish_what_will_be_lost(feed: Feed) -> None:
    """A new row, another value and a deactivation, in the topic."""
    with psycopg.connect(feed.url, autocommit=True) as connection:
        add(connection, "ghost")
        connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'lost' WHERE id = 1")
        connection.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 2")
    feed.settle()
    feed.settle()
    assert feed.reader.offset.is_durable
    assert feed.topic == expected(feed.url)
    feed.server.close()


def assert_put_right(feed: Feed, url: str, *, why: ResendReason = ResendReason.HISTORY) -> None:
    """The other server lives on for a while; then the source finds it."""
    assert feed.seen_snapshot is not None
    published = dict(feed.topic)
    with psycopg.connect(url, autocommit=True) as connection:
        add(connection, "elsewhere")
        connection.execute(CONSUME.format(2000))
        add(connection, "later")
        (counter,) = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8").fetchone()
    assert counter > feed.seen_snapshot.snapshot.xmax, "its transaction ids give it away"
    assert expected(url) != published
    feed.url = url
    feed.restart()
    assert feed.reader.offset.resend_reason is why
    sent = feed.settle()
    assert feed.topic == expected(url)
    assert len(sent) <= 5, "what the topic has already goes out once more"
    feed.restart()
    assert feed.settle() == []


def test_a_replica_that_lags_is_promoted(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: the new primary never got what was published last."""
    servers.append(base_backup(servers[0], "-R"))
    publish_what_will_be_lost(feed)
    servers[0].kill()
    servers[1].start()
    with psycopg.connect(servers[1].url(), autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")
    assert_put_right(feed, servers[1].url("d"))


@pytest.mark.parametrize("adopted", ["xmin"], indirect=True)
def test_a_restore_to_a_point_in_time(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: back to a moment before what was published last, under the same address."""
    restored = {
        "restore_command": f"cp {servers[0].home}/archive/%f %p",
        "recovery_target_name": "here",
        "recovery_target_action": "promote",
    }
    servers.append(base_backup(servers[0], settings=restored))
    with psycopg.connect(feed.url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_restore_point('here')")
    publish_what_will_be_lost(feed)
    servers[0].stop()
    (servers[1].home / "data" / "recovery.signal").touch()
    servers[1].start()
    wait_until(lambda: not _in_recovery(servers[1].url()), what="the end of recovery")
    assert_put_right(feed, servers[1].url("d"))


def _in_recovery(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(connection.execute("SELECT pg_is_in_recovery()").fetchone()[0])


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_a_base_backup_that_is_just_started(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: without a recovery target it stays on its timeline, as a copy of a running server does."""
    servers.append(base_backup(servers[0], port=servers[0].port))
    publish_what_will_be_lost(feed)
    servers[0].stop()
    servers[1].start()
    with psycopg.connect(feed.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE large AS SELECT repeat(n::text, 100) FROM generate_series(1, 20000) n")
    assert_put_right(feed, feed.url, why=ResendReason.CRASH)


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_another_cluster_that_was_restored_from_a_dump(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: the same address, database, table and rows; the rows bear ids of the first server."""
    first = servers[0]
    run(first, "pg_dump", "-p", str(first.port), "-Fc", "-f", first.home / "dump", "d")
    publish_what_will_be_lost(feed)
    first.stop()
    servers.append(empty_like(first, port=first.port))
    servers[1].start()
    run(servers[1], "pg_restore", "-p", str(first.port), "-C", "-d", "postgres", first.home / "dump")
    assert_put_right(feed, servers[1].url("d"))


@pytest.mark.parametrize("adopted", ["xmin"], indirect=True)
def test_a_database_that_was_copied_before_takes_its_place(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: the same server, and the table has the same oid; only the database's differs."""
    feed.server.close()
    with psycopg.connect(servers[0].url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE before TEMPLATE d")
        feed.restart()
        publish_what_will_be_lost(feed)
        connection.execute("DROP DATABASE d")
        connection.execute("ALTER DATABASE before RENAME TO d")
    assert_put_right(feed, feed.url)


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_a_copy_of_the_data_folder_is_put_back(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: a clean restart of the same server by all it says; its WAL has not come as far as it had."""
    server = servers[0]
    feed.server.close()
    server.stop()
    aside = set_aside(server)
    server.start()
    with psycopg.connect(feed.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE large AS SELECT repeat(n::text, 100) FROM generate_series(1, 20000) n")
    feed.restart()
    publish_what_will_be_lost(feed)
    server.stop()
    put_back(server, aside)
    server.start()
    with psycopg.connect(feed.url, autocommit=True) as connection:
        add(connection, "elsewhere")
        connection.execute(CONSUME.format(1000))
    feed.restart()
    feed.settle()
    assert feed.topic == expected(feed.url)


@pytest.mark.proof
def test_an_upgraded_server(servers: list[PostgresServer], feed: Feed) -> None:
    """Guarantee 8: pg_upgrade keeps oids and transaction ids, the system identifier is another one."""
    publish_what_will_be_lost(feed)
    servers[0].stop()
    servers.append(upgraded(servers[0]))
    servers[1].start()
    with psycopg.connect(feed.url, autocommit=True) as connection:
        add(connection, "upgraded")
    feed.restart()
    assert feed.reader.offset.resend_reason is ResendReason.HISTORY
    assert len(feed.settle()) == 1
    assert feed.topic == expected(feed.url)

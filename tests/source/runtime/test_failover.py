"""A standby is promoted while a source runs on two hosts: guarantee 12."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench
from tests.source.workload import wait_until
from tests.stack.postgres_copies import base_backup, new_server
from tests.stack.postgres_versions import chosen


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and a standby of it."""
    if chosen():
        pytest.skip(
            "pg_basebackup is of another version than the server, which does not know all that it tells a standby"
        )
    primary = new_server(settings={"synchronous_commit": "remote_apply", "wal_keep_size": "256MB"})
    primary.start()
    standby = base_backup(primary, "-R")
    standby.start()
    yield primary, standby
    standby.remove()
    primary.remove()


def promote(server: PostgresServer) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")


def caught_up(primary: PostgresServer, standby: PostgresServer) -> None:
    with psycopg.connect(primary.url()) as there, psycopg.connect(standby.url(), autocommit=True) as here:
        (written,) = there.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: (here.execute(replayed, [written]).fetchone() or (False,))[0], what="the standby")


def test_a_standby_is_promoted_and_the_old_primary_comes_back(
    pair: tuple[PostgresServer, PostgresServer], kafka: str, unique: Callable[[str], str]
) -> None:
    """Guarantee 12: the source moves to the new primary; one that was left behind on an older timeline is refused."""
    old, new = pair
    bench = Bench(old.url(), kafka, f"{unique('f')}-")
    bench.add("T1", "T2")
    hosts = f"127.0.0.1:{old.port},127.0.0.1:{new.port}"
    place = parse_url(f"jdbc:postgresql://{hosts}/postgres?targetServerType=primary", "postgres", None)
    running = bench.start(connection=place)
    bench.wait_for_records(2)
    caught_up(old, new)
    bench.sql.close()
    old.kill()
    running.wait_for(SourceState.WAITING)
    promote(new)
    with psycopg.connect(new.url(), autocommit=True) as writer:
        writer.execute("UPDATE terminal_acquirer SET acquirer_id = 'new' WHERE id = 1")
        wait_until(lambda: (b"1", b"new") in latest(bench), what="the change on the new primary")
        old.start()
        with psycopg.connect(old.url(), autocommit=True) as stale:
            stale.execute("UPDATE terminal_acquirer SET acquirer_id = 'left behind'")
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'compactory%'"
        writer.execute(end)
        running.wait_for(SourceState.FAILED)
        assert "old primary that nobody shut down" in (running.source.status().detail or "")
        writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T3', 'new')")
        os.kill(old.pid or 0, signal.SIGINT)
        wait_until(lambda: len(latest(bench)) == 3, 60, "the row of the new primary")
    assert b"left behind" not in {value for _, value in latest(bench)}
    assert not any(b"left behind" in (value or b"") for _, value in bench.records())
    bench.close()


def latest(bench: Bench) -> set[tuple[bytes, bytes]]:
    """Keys and their last acquirers."""
    found = {key: json.loads(value or b"{}").get("acquirerId", "") for key, value in bench.records()}
    return {(key or b"", value.encode()) for key, value in found.items()}

"""An older copy of Postgres or of Kafka is put back: whatever was published since, topic and table end the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import install
from compactory_connectors.source.offsets.offset_parts import Identity
from compactory_connectors.source.postgres.server import Server
from tests.source.conftest import Bench
from tests.source.test_another_history import CONSUME
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.postgres_copies import put_back, set_aside


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that can be stopped and copied, with a database ``d``."""
    server = PostgresServer(settings={"fsync": "off"})
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("CREATE DATABASE d")
    yield server
    server.remove()


def entries(bench: Bench) -> dict[bytes | None, str]:
    """What lookups find in the topic: terminals by key."""
    found = {key: json.loads(value)["terminalId"] if value else None for key, value in bench.records()}
    return {key: terminal for key, terminal in found.items() if terminal is not None}


def rows(bench: Bench) -> dict[bytes | None, str]:
    """What the table has."""
    query = "SELECT id, terminal_id FROM terminal_acquirer WHERE is_active"
    return {str(number).encode(): terminal for number, terminal in bench.sql.execute(query).fetchall()}


def reconnect(bench: Bench) -> None:
    bench.sql.close()
    bench.sql = psycopg.connect(bench.url, autocommit=True)


@pytest.mark.parametrize("installed", [True, pytest.param(False, marks=pytest.mark.proof)], ids=["before", "after"])
def test_a_cold_copy_of_postgres_is_put_back(
    server: PostgresServer, kafka: str, unique: Callable[[str], str], installed: bool
) -> None:
    """Guarantee 8: the counters have passed those of what was published; also where the leases came after the copy.

    An idle session in between, and one that ends before it has published anything, take nothing of that knowledge away.
    """
    bench = Bench(server.url("d"), kafka, f"{unique('c')}-")
    if installed:
        install(bench.sql)
    bench.add(*(f"T{number}" for number in range(10)))
    bench.once(soft_delete=True)
    bench.once(soft_delete=True)
    server.stop()
    copy = set_aside(server)
    server.start()
    reconnect(bench)
    install(bench.sql)
    bench.sql.execute("UPDATE terminal_acquirer SET terminal_id = 'late' WHERE id <= 3")
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 4")
    bench.add("U1", "U2", "U3")
    bench.once(soft_delete=True)
    assert len(entries(bench)) == 12
    server.stop()
    put_back(server, copy)
    server.start()
    reconnect(bench)
    bench.sql.execute(CONSUME.format(60))
    bench.add("V1")
    bench.sql.execute("CREATE TABLE filler AS SELECT n, repeat('x', 500) AS t FROM generate_series(1, 20000) n")
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr("compactory_connectors.source.runtime.session.Session.poll_tables", _fail)
        with pytest.raises(RuntimeError):
            bench.once(soft_delete=True)
    bench.once(soft_delete=True)
    assert entries(bench) == rows(bench)
    sent = len(bench.records())
    bench.once(soft_delete=True)
    assert len(bench.records()) == sent
    bench.close()


def _fail(*_: object) -> bool:
    raise RuntimeError("before anything is published")


def test_statistics_that_are_reset_by_hand_are_no_crash(bench: Bench) -> None:
    """Guarantee 9: a crash resets all of them at once; where somebody resets some, nothing is read again."""
    before = identity(bench)
    bench.sql.execute("SELECT pg_stat_reset_shared('bgwriter')")
    wait_until(lambda: identity(bench) != before, what="the reset, which PostgreSQL before 15 leaves to a process")
    between = identity(bench)
    assert between.same_statistics(before)
    bench.sql.execute("SELECT pg_stat_reset_shared('archiver')")
    wait_until(lambda: identity(bench) != between, what="the other one")
    after = identity(bench)
    assert after.same_statistics(between)
    assert not replace(after, statistics_start="2026-01-01 00:00:00+00").same_statistics(after)


def identity(bench: Bench) -> Identity:
    with closing(Server.open({"conninfo": bench.url})) as server:
        return server.identity(1)


@pytest.mark.proof
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("what", ["all", "topic"])
def test_an_older_copy_of_kafka_is_put_back(
    own_kafka: ApacheKafka, database: str, unique: Callable[[str], str], what: str, running: bool
) -> None:
    """Guarantee 9: the whole of it, or the table's topic alone, under a source that is idle or away; no row changes."""
    bench = Bench(database, own_kafka.address, f"{unique('k')}-")
    bench.add(*(f"T{number}" for number in range(10)))
    bench.once(soft_delete=True)
    own_kafka.stop()
    data = own_kafka.home / "data"
    folders = [path for path in data.iterdir() if what == "all" or path.name == f"{bench.topic}-0"]
    copy = own_kafka.home / "copy"
    copy.mkdir()
    subprocess.run(["cp", "-a", *folders, copy], check=True)
    own_kafka.start()
    bench.sql.execute("UPDATE terminal_acquirer SET terminal_id = 'late' WHERE id <= 3")
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 4")
    bench.add("U1", "U2")
    idle = bench.start(soft_delete=True) if running else None
    if idle is None:
        bench.once(soft_delete=True)
    wait_until(lambda: entries(bench) == rows(bench), 30, "the changes")
    own_kafka.stop()
    for folder in data.iterdir() if what == "all" else folders:
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    subprocess.run(["cp", "-a", *copy.iterdir(), data], check=True)
    shutil.rmtree(copy)
    own_kafka.start()
    if idle is None:
        bench.once(soft_delete=True)
    wait_until(lambda: entries(bench) == rows(bench), 40, "the topic to be mended")
    if idle is not None:
        idle.stop()
    bench.close()

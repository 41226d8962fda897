"""Disks that are full: of Postgres' temporary files, of Kafka's log. Needs the right to mount: root on Linux."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.source.status.status import SourceState
from tests.conftest import needs_apache_kafka
from tests.source.outages import Fragile, Trial
from tests.source.runtime.test_tables import Shop
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.proof, pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")]


@contextmanager
def small_disk(folder: Path, megabytes: int, owner: int = 0) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m,uid={owner},gid={owner},mode=0700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"no right to mount: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return filler
    raise AssertionError("a full disk takes more")


def test_no_room_for_temporary_files_of_postgres(
    database: str, kafka: str, postgres_server: PostgresServer, unique: Callable[[str], str]
) -> None:
    """Guarantee 12: a poll that has to sort fails, says why, and goes on by itself once there is room."""
    shop = Shop(database, kafka, f"{unique('m')}-")
    shop.table("other", 1)
    shop.table("t")
    shop.sql.execute("INSERT INTO t SELECT n FROM generate_series(1, 20000) n")
    shop.sql.execute("CREATE VIEW sorted AS SELECT id, changed, repeat(md5(id::text), 9) AS m FROM t ORDER BY m")
    name, place = unique("small").replace("-", "_"), database.rsplit("/", 1)[1]
    with small_disk(postgres_server.home / name, 16, postgres_server.home.stat().st_uid) as folder:
        shop.sql.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        shop.sql.execute(f"ALTER DATABASE {place} SET temp_tablespaces = {name}")
        shop.sql.execute(f"ALTER DATABASE {place} SET work_mem = '1MB'")
        filler = fill(folder)
        running = shop.start("bulk", table__types="TABLE,VIEW", table__include__list=r"public\.(sorted|other)")
        try:
            wait_until(lambda: "No space left" in str(shop.status("sorted")), what="the reason")
            assert getattr(shop.status("sorted"), "state", None) is SourceState.FAILED
            wait_until(lambda: len(shop.keys("other")) > 2, what="the other table")
            filler.unlink()
            wait_until(lambda: len(shop.keys("sorted")) >= 20_000, what="the rows")
            running.stop()
        finally:
            shop.close()
            with psycopg.connect(database, autocommit=True) as sql:
                sql.execute(f"ALTER DATABASE {place} RESET ALL")
                wait_until(lambda: not list(folder.glob("*/pgsql_tmp/*")), what="temporary files to go")
                sql.execute(f"DROP TABLESPACE {name}")


def test_no_room_for_kafkas_log(unique: Callable[[str], str]) -> None:
    """Guarantees 9 and 12: the broker ends in the middle of a transaction; nothing is lost or sent twice."""
    needs_apache_kafka()
    servers = Fragile()
    servers.kafka = ApacheKafka()
    with small_disk(servers.kafka.home / "data", 300) as folder:
        try:
            servers.start()
            servers.kafka_proxy.target = servers.kafka.port
            with psycopg.connect(servers.postgres.url(), autocommit=True) as connection:
                connection.execute("CREATE DATABASE full_disk")
            trial = Trial(servers, "full_disk", f"{unique('d')}-")
            with trial.process() as child:
                with trial.writer.writing():
                    wait_until(lambda: len(trial.published()) == 20, what="the first rows")
                    filler = fill(folder)
                    wait_until(lambda: child.state() == "WAITING", 120, "WAITING")
                    servers.kafka.kill()
                    filler.unlink()
                    servers.kafka.start()
                    wait_until(lambda: child.state() == "RUNNING", 120, "RUNNING")
                with psycopg.connect(trial.url) as sql:
                    rows = dict(sql.execute("SELECT id, acquirer_id::int FROM terminal_acquirer").fetchall())
                wait_until(lambda: {row: seen[-1] for row, seen in trial.published().items()} == rows, what="the rows")
            assert all(len(seen) == len(set(seen)) for seen in trial.published().values())
        finally:
            servers.remove()

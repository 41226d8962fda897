"""Rows that were deleted unseen, of tables that nobody may alter: found by sweeps beside the polls."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from compactory_connectors.source.planning.planner import plan_tables
from compactory_connectors.source.postgres.server import Server
from compactory_connectors.source.status.status import SourceState
from compactory_connectors.source.verify.comparison import KEYS, Comparison
from compactory_connectors.source.verify.key_ranges import KeyRanges
from compactory_connectors.source.verify.spool import Spool
from tests.source.conftest import ARTICLE, Bench, Running, article_environment
from tests.source.removals.test_removals import ROWS, by_terminal, held, living, status
from tests.source.workload import wait_until

SOON = {"sweep_interval_ms": 300}


def ids(bench: Bench) -> set[int]:
    """The keys that belong in the topic."""
    return {number for (number,) in bench.sql.execute("SELECT id FROM terminal_acquirer WHERE is_active").fetchall()}


def test_hard_deletes_of_a_table_as_it_is(bench: Bench) -> None:
    """Guarantee 10: rows deleted between two polls, also such that were inserted and deleted between two sweeps."""
    bench.sql.execute(ROWS.format(100))
    bench.start(soft_delete=True, **SOON)
    bench.wait_for_records(100)
    for number in range(1, 4):
        bench.sql.execute("DELETE FROM terminal_acquirer WHERE id %% 40 = %s", [number])
        bench.add("short")
        wait_until(lambda: ids(bench) <= living(bench), what="a new row")
        bench.sql.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'short'")
        wait_until(lambda: living(bench) == ids(bench), what="tombstones")
    removed = [key for key, value in bench.records() if value is None]
    assert len(removed) == len(set(removed))


def test_without_an_interval_nothing_is_swept(bench: Bench) -> None:
    bench.add("T1", "T2")
    running = bench.start()
    bench.wait_for_records(2)
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 1")
    bench.add("T3")
    bench.wait_for_records(3)
    assert status(running).state is SourceState.RUNNING
    assert living(bench) == {1, 2, 3}


def test_what_was_deleted_while_the_source_was_down(bench: Bench) -> None:
    """Guarantee 10: the first sweep after a start knows nothing and reads everything."""
    bench.sql.execute(ROWS.format(50))
    bench.once()
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 7")
    bench.start(**SOON)
    wait_until(lambda: living(bench) == ids(bench), what="the tombstone")


@pytest.mark.parametrize("sweeps", [SOON, {}], ids=["swept", "not-swept"])
def test_a_truncate_of_a_table_as_it_is_is_held(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sweeps: dict[str, int]
) -> None:
    """Guarantee 13: and what is loaded again meanwhile stays. That the table has new files tells of TRUNCATE."""
    monkeypatch.setattr("compactory_connectors.source.removals.cleanup._SWEEP_AGAIN", 0.2)
    bench.sql.execute(ROWS.format(20))
    running = bench.start(**sweeps)
    bench.wait_for_records(20)
    bench.sql.execute("TRUNCATE terminal_acquirer")
    assert held(running).removed == 20
    with bench.sql.transaction():
        bench.sql.execute("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id)"
                          " SELECT n, 'T' || n, 'B' FROM generate_series(1, 18) n")  # fmt: skip
    wait_until(lambda: living(bench) == set(range(1, 19)), what="an end of the hold")


@pytest.mark.parametrize("key", ["id", "tenant, id"])
def test_a_key_that_moves_to_another_row_is_never_removed(bench: Bench, seeded: random.Random, key: str) -> None:
    """Guarantee 10: rows move through the ranges while these are read; every tombstone is of a key that had no row."""
    bench.sql.execute("ALTER TABLE terminal_acquirer DROP CONSTRAINT terminal_acquirer_pkey,"
                      " ADD tenant text COLLATE \"C\" NOT NULL DEFAULT 'é''\\',"
                      " ADD code text NOT NULL DEFAULT 'none'")  # fmt: skip
    bench.sql.execute(f"ALTER TABLE terminal_acquirer ADD PRIMARY KEY ({key})")
    bench.sql.execute("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id)"
                      " SELECT n * 1000, 'T' || n, 'A' FROM generate_series(1, 300) n")  # fmt: skip
    stop = threading.Event()
    mover = threading.Thread(target=_move, args=(bench.url, stop, seeded.getrandbits(32)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyRanges.__init__, "__kwdefaults__", {"size": 20})
        bench.start(**by_terminal(bench), sweep_interval_ms=20)
        bench.wait_for_records(300)
        mover.start()
        bench.wait_for_records(1500)
        bench.sql.execute("DELETE FROM terminal_acquirer WHERE terminal_id IN ('T5', 'T6')")
        stop.set()
        mover.join()
        wait_until(lambda: {key for key, value in dict(bench.records()).items() if value is None}, what="tombstones")
    assert {key for key, value in bench.records() if value is None} <= {b"T5", b"T6"}


def _move(url: str, stop: threading.Event, seed: int) -> None:
    """Rows get other primary keys, below and above what they had."""
    dice = random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.is_set():
            connection.execute(
                "UPDATE terminal_acquirer SET id = %s + (id %% 1000) WHERE terminal_id = %s",
                [dice.randrange(100_000_000) * 1000 + dice.randrange(1000), f"T{dice.randint(7, 300)}"],
            )


def test_a_table_without_a_primary_key(bench: Bench) -> None:
    """Guarantee 10: its keys are read in one snapshot."""
    bench.sql.execute("ALTER TABLE terminal_acquirer DROP CONSTRAINT terminal_acquirer_pkey")
    bench.sql.execute(ROWS.format(30))
    bench.start(**SOON)
    bench.wait_for_records(30)
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 3")
    wait_until(lambda: living(bench) == ids(bench), what="the tombstone")


def test_other_tables_go_on_while_one_is_swept(bench: Bench) -> None:
    """Guarantee 10: a sweep takes slices between polls."""
    bench.sql.execute("CREATE TABLE other (LIKE terminal_acquirer INCLUDING ALL)")
    bench.sql.execute(ROWS.format(60_000))
    connector = bench.connector()
    names = (*connector.selection.listed, type(connector.selection.listed[0])(None, "other"))
    selection = type(connector.selection)(listed=names)
    running = bench.start(selection=selection, sweep_interval_ms=100)
    bench.wait_for_records(60_000)
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id % 10000 = 1")
    for number in range(20):
        bench.sql.execute("INSERT INTO other (terminal_id, acquirer_id) VALUES ('T', 'A')")
        wait_until(lambda: _rows(running, "public.other") == number + 1, 10.0, "a row of the other table")  # noqa: B023
    wait_until(lambda: len(living(bench)) == 59_994, what="the tombstones")


def _rows(running: Running, table: str) -> int:
    return next(found.rows_total for found in running.source.status().tables if found.table == table)


@pytest.mark.proof
def test_killed_in_the_middle_of_sweeps(bench: Bench, seeded: random.Random, tmp_path: Path) -> None:
    """Guarantees 9, 10: a sweep that is cut off begins again; the topic ends as the table, every key removed once."""
    written = json.loads(ARTICLE.read_text()) | {"poll.interval.ms": "20", "batch.max.rows": "20"}
    path = tmp_path / f"{bench.prefix}.json"
    path.write_text(json.dumps(written | {"compactory.sweep.interval.ms": "100"}))
    environment = {**os.environ, **article_environment(bench.url, bench.prefix)}
    command = [sys.executable, "-m", "compactory_cli", "source", "run", str(path), "--kafka", bench.kafka.bootstrap]
    bench.sql.execute(ROWS.format(5000))
    deleted = 0
    for _ in range(2):
        with (tmp_path / "log").open("ab") as log:
            child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(living(bench)) <= len(ids(bench)) and len(bench.records()) >= 5000, 60, "a sweep")
            tombstones = sum(value is None for _, value in bench.records())
            count = seeded.randint(150, 300)
            deleted += bench.sql.execute(
                "DELETE FROM terminal_acquirer"
                " WHERE id IN (SELECT id FROM terminal_acquirer ORDER BY random() LIMIT %s)",
                [count],
            ).rowcount
            wait_until(lambda: sum(v is None for _, v in bench.records()) > tombstones, 60, "tombstones")  # noqa: B023
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    bench.start(**SOON)
    wait_until(lambda: living(bench) == ids(bench), what="the last of the tombstones")
    removed = [key for key, value in bench.records() if value is None]
    assert len(removed) == len(set(removed)) == deleted


def test_random_keys_of_several_partitions(seeded: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers know what dictionaries know, and what does not fit into memory is on disk."""
    monkeypatch.setattr(Spool.__init__, "__kwdefaults__", {"limit": 50_000})
    plain: dict[int, dict[bytes, bool]] = {0: {}, 1: {}, 2: {}}
    rows = [b"%d" % number for number in range(0, 9000, 2)]
    with Comparison(KEYS) as comparison:
        for _ in range(60):
            records = []
            for _ in range(1000):
                partition, key, alive = seeded.randrange(3), b"%d" % seeded.randrange(9000), seeded.random() < 0.7
                plain[partition][key] = alive
                records.append(stored(key, partition, alive=alive))
            comparison.take_records(records)
        comparison.take_numbers(map(hash, rows))
        found = list(comparison.vanished())
    living = [{hash(key) for key, alive in keys.items() if alive} for keys in plain.values()]
    every = living[0] | living[1] | living[2]
    assert set().union(*(gone for _, gone, _ in found)) == every - {*map(hash, rows)}
    assert sum(kept for kept, _, _ in found) == len(every & {*map(hash, rows)})
    assert set().union(*(several for _, _, several in found)) == (
        (living[0] & living[1]) | (living[0] & living[2]) | (living[1] & living[2])
    )


def stored(key: bytes, partition: int, *, alive: bool) -> Any:
    """A message as the client gives it."""
    return SimpleNamespace(
        key=lambda: key,
        value=lambda: b"{}" if alive else None,
        partition=lambda: partition,
        offset=lambda: 0,
        timestamp=lambda: (1, 0),
    )


def test_a_range_of_keys_takes_eight_bytes_a_key(bench: Bench) -> None:
    """It is what a sweep keeps of a table until the next one."""
    bench.sql.execute(ROWS.format(1000))
    server = Server.open(bench.connector().connection.conninfo)
    try:
        [plan] = plan_tables(server, bench.connector())
        [found] = KeyRanges(server, plan).read()
    finally:
        server.close()
    assert (len(found.numbers), found.numbers.itemsize) == (1000, 8)

"""Loads: what Postgres writes itself, snapshots that are let go, and processes that are killed in the middle."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactory.records import Partition
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.connect.record.record import RowFailed
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.polling import table_reader as table_module
from compactory_connectors.source.polling.reader import Load
from compactory_connectors.source.polling.table_reader import open_reader
from tests.source.conftest import ARTICLE, Bench, article_environment
from tests.source.poller import Poller, cleared
from tests.source.workload import wait_until

STAMPED = {"transforms": "key,id,fmt",
           "transforms.fmt.type": "org.apache.kafka.connect.transforms.TimestampConverter$Value",
           "transforms.fmt.target.type": "string", "transforms.fmt.format": "yyyy-MM-dd HH:mm:ss.SSS",
           "transforms.fmt.field": "changed"}  # fmt: skip


@pytest.fixture
def sql(shared: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(cleared(shared), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int8 PRIMARY KEY, name text, live bool NOT NULL DEFAULT true, changed timestamp)"
        )
        yield connection


def fill(sql: psycopg.Connection[Any], rows: int) -> None:
    """Rows of several kinds: deactivated ones, without a timestamp or before our calendar, and with nasty texts."""
    sql.execute(
        "INSERT INTO t SELECT n, E'T\\u00fc\"\\x1f\\\\ ' || CASE n %% 11 WHEN 0 THEN chr(128512) ELSE n::text END,"
        " n %% 5 > 0, CASE n %% 13 WHEN 0 THEN NULL"
        " WHEN 1 THEN '0300-02-28 01:02:03.4567'::timestamp WHEN 2 THEN '0033-04-03 BC'::timestamp"
        " ELSE timestamp '2024-01-01' + (n %% 17) * interval '1 millisecond' END FROM generate_series(1, %s) n",
        [rows],
    )


def poller(shared: str, **changes: Any) -> Poller:
    stamped = {name.replace(".", "__"): value for name, value in STAMPED.items()}
    given = {**stamped, "validate__non__null": "false", **changes}
    return Poller(shared, "timestamp+incrementing", **given)


@contextmanager
def ordinary(poller: Poller) -> Iterator[None]:
    """Let the converters write everything."""
    assert poller.plan.rows.formatted is not None
    assert poller.server is not None
    plan = replace(poller.plan, rows=replace(poller.plan.rows, formatted=None))
    poller.reader = open_reader(poller.server, plan, None, (plan.topic, None))
    yield


def reached(poller: Poller) -> tuple[Any, ...]:
    """How far a poll has come, as it is stored."""
    offset = SourceOffset.loads(poller.stored or b"")
    return offset.cursor, offset.seen_snapshot, offset.partial_polls, offset.sweep


@pytest.mark.parametrize("size", [7, 100])
@pytest.mark.parametrize("soft_delete", [None, "tombstone", "value"])
def test_a_load_is_the_same_whoever_writes_it(
    shared: str, sql: psycopg.Connection[Any], size: int, soft_delete: str | None
) -> None:
    fill(sql, 100)
    deletes = {"compactory__soft__delete__column": "live", "compactory__soft__delete__mode": soft_delete}
    one, other = (poller(shared, **(deletes if soft_delete else {})) for _ in range(2))
    with ordinary(other):
        other.poll(size)
    one.poll(size)
    assert one.sent == other.sent
    assert len(one.sent) == 100
    assert reached(one) == reached(other)
    for one_or_other in (one, other):
        assert one_or_other.poll() == []
        one_or_other.close()


def test_a_row_that_can_not_be_converted_is_named_alike(shared: str, sql: psycopg.Connection[Any]) -> None:
    sql.execute("ALTER TABLE t ADD d date")
    sql.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    sql.execute("UPDATE t SET d = 'infinity' WHERE id = 2")
    strict = poller(shared)
    with pytest.raises(RowFailed, match="row id 2: column d: Connect's Date takes whole days only"):
        strict.poll()
    strict.close()
    tolerant = poller(shared, errors__tolerance="all")
    assert tolerant.ids() == [1, 3]
    assert tolerant.skipped == 1
    tolerant.close()


def test_a_database_that_is_not_in_utf8_goes_the_ordinary_way(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as owner:
        owner.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        url = postgres_server.url("latin")
        with psycopg.connect(url, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int8 PRIMARY KEY, name text, changed timestamp DEFAULT now())")
            sql.execute("INSERT INTO t VALUES (1, %s)", ["é"])
        polled = poller(url)
        assert [row["name"] for row in polled.poll()] == ["é"]
        polled.close()
        owner.execute("DROP DATABASE latin WITH (FORCE)")


def test_a_load_that_is_cut_off_leaves_the_connection_usable(shared: str, sql: psycopg.Connection[Any]) -> None:
    """While a page is used the next rows are on their way."""
    fill(sql, 1000)
    polled = poller(shared)
    polled.poll(10, pages=1)
    assert polled.server is not None
    assert polled.server.current_snapshot()
    assert len(polled.sent) == 10
    polled.poll(10)
    assert len(polled.sent) == 1000
    polled.close()


@pytest.mark.parametrize("size", [7, 40])
@pytest.mark.parametrize("seed", range(3))
def test_a_load_lets_go_of_its_snapshot_while_kafka_is_slow(
    shared: str, sql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, seed: int, size: int
) -> None:
    """Guarantee 8: writes go on; a row that nobody changes is sent once, a change comes after what it changes."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(table_module, "_LONGEST_WAIT", -1e9)
    fill(sql, 200)
    polled = poller(shared, compactory__soft__delete__column="live")
    changed: set[int] = set()
    snapshots: set[str] = set()
    for batch in polled.reader.batches(size):
        polled.sent += batch.records
        polled.reader.acknowledge(batch)
        polled.stored = batch.offset.dumps()
        assert len(batch.offset.partial_polls) <= 4
        snapshots.update(str(page.seen_snapshot.snapshot) for page in batch.offset.partial_polls)
        ids = chance.sample(range(1, 201), 2)
        changed.update(ids)
        sql.execute("UPDATE t SET name = name || '+', changed = now() WHERE id = ANY (%s)", [ids])
        if chance.random() < 0.3:
            polled.restart()
            break
    for _ in range(3):
        polled.poll(size)
    assert polled.poll() == []
    held = dict(polled.sent)
    rows = sql.execute("SELECT id::text, name, live FROM t").fetchall()
    assert {key: json.loads(value)["name"] for key, value in held.items() if value is not None} == {
        key.encode(): name for key, name, live in rows if live
    }
    counts = Counter(int(key) for key, _ in polled.sent if key is not None)
    assert {number for number, times in counts.items() if times > 1} <= changed
    assert set(counts) == set(range(1, 201))
    polled.close()


def test_progress_of_a_load(shared: str, sql: psycopg.Connection[Any]) -> None:
    fill(sql, 25)
    polled = poller(shared)
    loads = [(batch.load, polled.reader.acknowledge(batch))[0] for batch in polled.reader.batches(10)]
    assert [(load.rows, load.of) for load in loads if load is not None] == [(10, 25), (20, 25), (25, 25)]
    sql.execute("UPDATE t SET name = 'b' WHERE id = 1")
    assert [batch.load for batch in polled.reader.batches(10)] == [None]
    polled.close()


def test_what_is_said_of_a_load() -> None:
    load = Load(rows=250_000, of=1_000_000, seconds=2.0)
    assert str(load) == "250,000 of 1,000,000 rows (25%), 125,000 a second, 6 s left"
    assert load.fields() == {"rows": 250_000, "of": 1_000_000, "rate": 125_000, "eta": 6.0}
    assert str(Load(rows=0, of=0, seconds=0.0)) == "0 of 0 rows (100%), 0 a second"


def run(bench: Bench, folder: Path, *, page: int) -> subprocess.Popen[bytes]:
    """The article's connector in a process of its own."""
    path = folder / f"{bench.prefix}.json"
    path.write_text(json.dumps(json.loads(ARTICLE.read_text()) | {"batch.max.rows": str(page), "name": bench.prefix}))
    command = [sys.executable, "-m", "compactory_cli", "source", "run", str(path), "--kafka", bench.kafka.bootstrap]
    environment = {**os.environ, **article_environment(bench.url, bench.prefix)}
    return subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.DEVNULL, env=environment)


@pytest.mark.proof
def test_kill_9_does_not_start_a_load_over(bench: Bench, tmp_path: Path) -> None:
    """Guarantee 9: over three lives and under writes a row that nobody touches is in the topic once, others right."""
    rows = 40_000
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, %s) n",
        [rows],
    )
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(bench.url, stop))
    writer.start()
    try:
        for share in (0.2, 0.6):
            child = run(bench, tmp_path, page=500)
            wait_until(lambda share=share: sent(bench) > share * rows, 60, "pages")
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert sent(bench) < rows
    finally:
        stop.set()
        writer.join()
    bench.once()
    records = bench.records()
    counts = Counter(key for key, _ in records)
    assert {key for key, times in counts.items() if times > 1} <= {str(number).encode() for number in TOUCHED}
    held = {key: json.loads(value or b"")["acquirerId"] for key, value in records}
    found = bench.sql.execute("SELECT id::text, acquirer_id FROM terminal_acquirer").fetchall()
    assert held == {key.encode(): acquirer for key, acquirer in found}


TOUCHED = range(1, 40_001, 1000)


def write(url: str, stop: threading.Event) -> None:
    """Change rows all over the table until told to stop."""
    with psycopg.connect(url, autocommit=True) as sql:
        number = 0
        while not stop.wait(0.005):
            row = TOUCHED[number % len(TOUCHED)]
            sql.execute("UPDATE terminal_acquirer SET acquirer_id = %s WHERE id = %s", [f"B{number}", row])
            number += 1


def sent(bench: Bench) -> int:
    """Offsets of the topic so far."""
    if not bench.kafka.topics([bench.topic]):
        return 0
    return sum(bench.kafka.high_watermarks([Partition(bench.topic, 0)]).values())


def test_a_small_queue_of_the_producer_only_slows_a_load_down(bench: Bench) -> None:
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, 5000) n"
    )
    bench.once(producer={"queue.buffering.max.messages": 100})
    assert sorted(int(key or b"") for key, _ in bench.records()) == list(range(1, 5001))

"""No tombstone takes away the record of a living row: partitioners, primary keys, key transforms, shared keys."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.kafka.producer_record import Copy
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.config.connector import SoftDelete, TopicCreation
from compactory_connectors.source.offsets.stored_offsets import read_offsets
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC
from compactory_connectors.source.polling.living_rows import LivingRows
from compactory_connectors.source.polling.removal import misplaced
from compactory_connectors.source.removals import cleanup
from compactory_connectors.source.runtime.repair import repair
from compactory_connectors.source.verify.key_ranges import KeyRanges
from tests.source.conftest import Bench
from tests.source.poller import Poller
from tests.source.removals.test_removals import ROWS, by_terminal, status
from tests.source.removals.test_sweeps import SOON
from tests.source.workload import wait_until

SPREAD = TopicCreation(partitions=3, replication_factor=1)
CONSISTENT = {"partitioner": "consistent_random"}


@pytest.fixture(autouse=True)
def quick_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads."""
    monkeypatch.setattr(cleanup, "_PARTITIONS_KNOWN", 0.0)


def lookups(bench: Bench) -> dict[bytes, set[int]]:
    """The keys that readers find, with the partitions in which they live: of each key the newest record counts."""
    newest: dict[Any, dict[int, tuple[int, bool]]] = {}
    for message in read(bench.kafka, bench.topic):
        alive = message.value() is not None
        newest.setdefault(message.key(), {})[message.partition() or 0] = (message.timestamp()[1], alive)
    found = {}
    for key, copies in newest.items():
        if max((stamp, at, alive) for at, (stamp, alive) in copies.items())[2]:
            found[key] = {at for at, (_, alive) in copies.items() if alive}
    return found


def keys(bench: Bench, column: str = "id") -> set[bytes]:
    return {row[0].encode() for row in bench.sql.execute(f"SELECT {column}::text FROM terminal_acquirer").fetchall()}


def at_home(bench: Bench) -> dict[bytes, set[int]]:
    """Every row's key, in its partition alone."""
    return {key: {zlib.crc32(key) % 3} for key in keys(bench)}


@pytest.mark.parametrize("name", ["murmur2", "consistent", "consistent_random", "fnv1a", "fnv1a_random"])
def test_librdkafka_has_keys_where_we_look_for_them(kafka: str, unique: Callable[[str], str], name: str) -> None:
    topic = unique("placed")
    Kafka(kafka).create_topic(topic, partitions=13, replication=1, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka, "partitioner": name})
    for number in range(200):
        producer.produce(topic, b"1", f"{number:x}é{'-' * (number % 9)}".encode())
    assert producer.flush(30) == 0
    for message in read(Kafka(kafka), topic):
        assert message.partition() == partition_by(message.key() or b"", 13, name)
    assert partition_by(b"1", 13, "random") is None


def test_a_switched_partitioner_moves_keys_and_loses_none(bench: Bench) -> None:
    """Guarantee 13: keys belong to other partitions then; every row is sent before any former copy goes."""
    bench.sql.execute(ROWS.format(200))
    bench.once(topics=SPREAD)
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id <= 100")
    running = bench.start(producer=CONSISTENT, **SOON)
    wait_until(lambda: lookups(bench) == at_home(bench), what="every key at home, and there alone")
    assert status(running).removals_stopped_total == 0


@pytest.mark.parametrize("partitioner", ["consistent_random", "random"])
def test_a_repair_knows_the_producers_partitioner(bench: Bench, partitioner: str) -> None:
    """Guarantee 13: as its records go there; where chance decides, no copy is taken for misplaced."""
    bench.sql.execute(ROWS.format(60))
    bench.once(topics=SPREAD, producer={"partitioner": partitioner})
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B'")
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 60")
    connector = bench.connector(producer={"partitioner": partitioner})
    mended = repair(connector, bench.kafka, "public.terminal_acquirer", [b"%d" % number for number in range(1, 61)])
    assert len(mended.records) == 60
    assert lookups(bench).keys() == keys(bench)


def test_a_copy_that_is_newer_than_the_record_at_home_stays() -> None:
    """Guarantee 13: its tombstone would be as new, and take the key from lookups. What brokers stamp stays as well."""
    stamps = {(b"a", 0): 5, (b"a", 1): 4, (b"b", 0): 5, (b"b", 1): 5, (b"c", 1): 4, (b"d", 0): None, (b"d", 1): 4}
    stamps |= {(b"e", 0): -1, (b"e", 1): -1, (b"f", 0): 5, (b"f", 1): 0}
    assert [*misplaced(stamps, lambda _key: 0, 100)] == [Copy(b"a", 1, 4)]
    assert not [*misplaced(stamps, lambda _key: 0, 4)], "one of a clock that is ahead: what is sent next would be older"
    assert not [*misplaced(stamps, lambda _key: None, 100)]


def one_removed(bench: Bench, number: int) -> None:
    """Insert and delete a row, so that two sweeps at least go over the table; no other key may go."""
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id) VALUES (%s, 'short', 'A')", [number]
    )
    wait_until(lambda: b"short" in lookups(bench), what="a new row")
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'short'")
    wait_until(lambda: b"short" not in lookups(bench), what="its tombstone")


def test_the_primary_key_changes_under_a_running_source(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 13: ranges are of the primary key that there is, and no key goes because ids are no more unique."""
    monkeypatch.setattr(KeyRanges.__init__, "__kwdefaults__", {"size": 20})
    bench.sql.execute(ROWS.format(300))
    running = bench.start(**by_terminal(bench), sweep_interval_ms=50)
    bench.wait_for_records(300)
    one_removed(bench, 1000)
    with bench.sql.transaction():
        bench.sql.execute("ALTER TABLE terminal_acquirer DROP CONSTRAINT terminal_acquirer_pkey")
        bench.sql.execute("UPDATE terminal_acquirer SET id = 7 WHERE id <= 100")
        bench.sql.execute("ALTER TABLE terminal_acquirer ADD PRIMARY KEY (terminal_id)")
    for _ in range(3):
        one_removed(bench, 7)
    assert lookups(bench).keys() == keys(bench, "terminal_id")
    assert {key for key, value in bench.records() if value is None} == {b"short"}
    assert status(running).removals_stopped_total == 0


def test_inheritance_children_share_ids(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 13: what is unique in each table is not in all of them, so that no range may end within an id."""
    monkeypatch.setattr(KeyRanges.__init__, "__kwdefaults__", {"size": 21})
    bench.sql.execute(ROWS.format(200))
    bench.sql.execute("CREATE TABLE child () INHERITS (terminal_acquirer)")
    bench.sql.execute("INSERT INTO child (id, terminal_id, acquirer_id)"
                      " SELECT n, 'C' || n, 'A' FROM generate_series(1, 200) n")  # fmt: skip
    bench.start(**by_terminal(bench), sweep_interval_ms=50)
    bench.wait_for_records(400)
    for _ in range(2):
        one_removed(bench, 1000)
    assert {key for key, value in bench.records() if value is None} == {b"short"}


def test_other_keys_under_the_same_name_are_loaded_before_the_former_go(bench: Bench) -> None:
    """Guarantee 13: at no moment are there fewer living keys than rows."""
    bench.sql.execute(ROWS.format(200))
    bench.once()
    bench.once(**by_terminal(bench), max_removed_percent=100)
    assert lookups(bench).keys() == keys(bench, "terminal_id")
    living: set[Any] = set()
    fewest = 200
    for number, (key, value) in enumerate(bench.records()):
        living = living - {key} if value is None else living | {key}
        fewest = min(fewest, len(living)) if number >= 200 else fewest
    assert fewest == 200


def test_what_decides_which_keys_are_there_is_part_of_it(bench: Bench) -> None:
    """Guarantee 10: a soft-delete column that a loaded connector is given takes the deactivated rows' keys away."""
    bench.sql.execute(ROWS.format(40))
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= 5")
    bench.once()
    bench.once(soft_delete=SoftDelete("is_active"))
    assert lookups(bench).keys() == keys(bench) - {b"%d" % number for number in range(1, 6)}


def test_an_offset_without_a_digest_is_gone_on_from(bench: Bench) -> None:
    """Guarantee 9: one that an earlier version has stored; the digest is written with the next change."""
    bench.sql.execute(ROWS.format(20))
    bench.once()
    [stored] = [each for each in read_offsets(bench.kafka) if each.connector == bench.prefix]
    before = json.loads(stored.value or b"")
    assert before.pop("key_digest")
    producer = Producer({"bootstrap.servers": bench.kafka.bootstrap})
    producer.produce(OFFSETS_TOPIC, json.dumps(before).encode(), stored.key)
    assert producer.flush(30) == 0
    bench.once()
    assert len(bench.records()) == 20
    bench.add("new")
    bench.once()
    assert len(bench.records()) == 21
    [stored] = [each for each in read_offsets(bench.kafka) if each.connector == bench.prefix]
    assert stored.offset is not None
    assert stored.offset.key_digest is not None


TABLE = "CREATE TABLE t (id int8 PRIMARY KEY, changed timestamp NOT NULL DEFAULT now(), active bool DEFAULT true)"
NARROWED = {
    "transforms": "key,id,cast",
    "transforms__cast__type": "org.apache.kafka.connect.transforms.Cast$Key",
    "transforms__cast__spec": "int32",
}


def test_rows_that_share_a_key_keep_it_until_the_last_is_gone(database: str) -> None:
    """Guarantee 13: where a conversion makes one key of several columns' values, every row's key is looked at."""
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(TABLE)
        sql.execute("INSERT INTO t (id) VALUES (1), (1 + (1::int8 << 32)), (2)")
        poller = Poller(database, "timestamp+incrementing", compactory__soft__delete__column="active", **NARROWED)
        try:
            poller.poll()
            sql.execute("UPDATE t SET active = false WHERE id > 1")
            assert poller.poll() == [(b"2", None)]
            sql.execute("UPDATE t SET active = false WHERE id = 1")
            assert poller.poll() == [(b"1", None)]
        finally:
            poller.close()


STRING = {"key__converter": "org.apache.kafka.connect.storage.StringConverter"}
JSON = {"key__converter": "org.apache.kafka.connect.json.JsonConverter"}
LONG = {"key__converter": "org.apache.kafka.connect.converters.LongConverter"}
SCHEMALESS = {**JSON, "key__converter__schemas__enable": "false"}
BY_NAME = {"transforms__key__fields": "name", "transforms__id__field": "name"}
STRUCT = {"transforms": "key", "transforms__key__fields": "name,id,uid,amount",
          "transforms__id__type": None, "transforms__id__field": None}  # fmt: skip
AVRO = {"key__converter": "io.confluent.connect.avro.AvroConverter",
        "key__converter__schema__registry__url": "mock://keys"}  # fmt: skip
CASES: Sequence[dict[str, Any]] = [STRING, JSON, LONG, SCHEMALESS, STRING | BY_NAME, JSON | BY_NAME, JSON | STRUCT,
                                   SCHEMALESS | STRUCT, AVRO, AVRO | BY_NAME, AVRO | STRUCT]  # fmt: skip


@pytest.mark.parametrize("changes", CASES, ids=[str(number) for number in range(len(CASES))])
def test_columns_are_read_out_of_keys(database: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 13: rows are found by their keys through indexes, whatever their texts; other keys have none."""
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(
            "CREATE TABLE t (id int8 PRIMARY KEY, name varchar(40) NOT NULL, uid uuid DEFAULT gen_random_uuid(),"
            " amount numeric(9, 0) DEFAULT 7, changed timestamp NOT NULL DEFAULT now())"
        )
        names = [
            "5",
            'é"\\',
            "",
            " null",
            "-7",
            "{}",
            '{"a":1}',
            "T1",
            "日本",
            "\U0001f600",
            "a\tb",
            "1e3",
            "007",
            "true",
        ]
        for number, name in enumerate(names):
            sql.execute("INSERT INTO t (id, name) VALUES (%s, %s)", [number - 3, name])
        monkeypatch.setattr(LivingRows, "_by_key", lambda *_: pytest.fail("every row was looked at"))
        poller = Poller(database, "timestamp+incrementing", numeric__mapping="best_fit", **changes)
        try:
            found = {key for batch in poller.reader.batches() for key, _ in batch.records if key is not None}
            assert len(found) == len(names)
            assert poller.server is not None
            rows = LivingRows(poller.server, poller.plan)
            assert rows.among(dict.fromkeys(found)) == found
            sql.execute("DELETE FROM t WHERE id < 0")
            assert len(rows.among(dict.fromkeys(found))) == len(names) - 3
        finally:
            poller.close()


@pytest.mark.proof
def test_what_it_costs(bench: Bench) -> None:
    """Figures for people: a look at N keys of 200,000 rows through an index, and at every row."""
    bench.sql.execute(ROWS.format(200_000))
    bench.sql.execute("ANALYZE terminal_acquirer")
    poller = Poller(bench.url, "timestamp+incrementing", table__whitelist="terminal_acquirer",
                    timestamp__column__name="updated_date")  # fmt: skip
    try:
        assert poller.server is not None
        rows = LivingRows(poller.server, poller.plan)
        for number in (1, 100, 10_000):
            asked: dict[bytes, Any] = {b"%d" % (2 * key + 190_000): None for key in range(number)}
            with poller.server.connection.transaction():
                began = time.perf_counter()
                found = rows.among(asked)
                by_index = time.perf_counter() - began
                began = time.perf_counter()
                assert rows._by_key(asked, LivingRows.among.__defaults__[0]) == found  # type: ignore[index]
                print(f"{number} keys: {by_index * 1000:.2f} ms by index, {time.perf_counter() - began:.2f} s by rows")
    finally:
        poller.close()

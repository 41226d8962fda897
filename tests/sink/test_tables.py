"""``compactory sink run``: records become rows, as the JDBC sink connector's keys say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import TopicPartition
from compactory_connectors.sink import SinkStopped, TransactionalSink
from compactory_connectors.sink.into_table.sink_config import SinkConfig, load_sink
from compactory_connectors.sink.into_table.writer import table_sink
from compactory_connectors.sink.operators import failed_records, retry
from tests.sink.harness import Bench
from tests.source.workload import wait_until

PLAIN = {"value.converter.schemas.enable": "false"}
UPSERT = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id", "delete.enabled": "true", **PLAIN}
ACCOUNTS = "CREATE TABLE accounts (id text PRIMARY KEY, name text NOT NULL, balance int4, extra text DEFAULT 'd')"


def config(bench: Bench, tmp_path: Path, topic: str, **keys: str) -> SinkConfig:
    file = tmp_path / f"{bench.name}.json"
    file.write_text(json.dumps({"topics": topic, "connection.url": bench.url, **keys}))
    return load_sink(file)


class Tables:
    def __init__(self, bench: Bench, tmp_path: Path) -> None:
        self.bench, self._path = bench, tmp_path
        self._running: list[TransactionalSink] = []

    def run(self, topic: str, **keys: str) -> TransactionalSink:
        sink = table_sink(config(self.bench, self._path, topic, **keys), self.bench.kafka)
        sink.start()
        self._running.append(sink)
        return sink

    def sunk(self, topic: str, *records: tuple[str | None, Any]) -> None:
        made = [
            (key, None if value is None else value if isinstance(value, bytes | str) else json.dumps(value))
            for key, value in records
        ]
        self.bench.produce(topic, made)

    def close(self) -> None:
        for sink in self._running:
            assert sink.stop()


@pytest.fixture
def tables(bench: Bench, tmp_path: Path) -> Iterator[Tables]:
    bench.sql.execute(ACCOUNTS)
    tables = Tables(bench, tmp_path)
    yield tables
    tables.close()


def test_text_that_copy_gives_a_meaning_to_stays_as_it_is(bench: Bench, tables: Tables) -> None:
    texts = ["\\N", "\\.", "\\", "", "\t", "a\nb\r\n", "\\t\\n", "\\x41", "\u2028\x0b\x1c", "é😀", "NULL", '"']
    topic = bench.topic()
    made = [(text, {"name": text, "balance": None if n % 2 else n}) for n, text in enumerate(texts)]
    tables.sunk(topic, *made)
    tables.run(topic, **UPSERT, **{"table.name.format": "accounts"})
    bench.wait_for_end(topic)
    rows = bench.rows("SELECT id, name, balance FROM accounts")
    assert {row[0]: {"name": row[1], "balance": row[2]} for row in rows} == dict(made)


def test_upserts_and_deletes_by_the_records_key(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    tables.sunk(
        topic,
        ("a", {"name": "A", "balance": 1}),
        ("b", {"name": "B", "balance": 2}),
        ("a", {"name": "Ä\t\\n'", "balance": None}),
        ("b", None),
        ("c", {"name": "C", "balance": 3, "extra": "e"}),
        ("c", {"name": "C2"}),
        ("d", None),
        ("e", {"name": "E", "extra": "gone"}),
        ("e", None),
        ("e", {"name": "E2"}),
    )
    tables.run(topic, **UPSERT, **{"table.name.format": "accounts"})
    bench.wait_for_end(topic)
    rows = [("a", "Ä\t\\n'", None, "d"), ("c", "C2", 3, "e"), ("e", "E2", None, "d")]
    assert bench.rows("SELECT * FROM accounts ORDER BY id") == rows
    tables.sunk(topic, ("a", None), ("c", {"balance": 4, "name": "C3"}))
    bench.wait_for_end(topic)
    assert bench.rows("SELECT * FROM accounts ORDER BY id") == [("c", "C3", 4, "e"), rows[2]]


def test_inserts_updates_and_primary_keys_of_value_and_coordinates(bench: Bench, tables: Tables) -> None:
    bench.sql.execute("INSERT INTO accounts VALUES ('a', 'A', 1)")
    updated = bench.topic()
    tables.sunk(updated, ("x", {"id": "a", "name": "A2"}), ("x", {"id": "none", "name": "N"}))
    value = {"pk.mode": "record_value", "pk.fields": "id", "table.name.format": "accounts", **PLAIN}
    first = tables.run(updated, **value, **{"insert.mode": "update"})
    bench.wait_for_end(updated)
    assert bench.rows("SELECT id, name, balance FROM accounts") == [("a", "A2", 1)]
    assert first.stop()
    bench.sql.execute(
        "CREATE TABLE log (__connect_topic text, __connect_partition int, __connect_offset int8, name text)"
    )
    logged = bench.topic()
    tables.sunk(logged, (None, {"name": "1", "id": "no"}), (None, {"name": "2"}))
    keys = {"pk.mode": "kafka", "table.name.format": "public.log", "fields.whitelist": "name"}
    tables.run(logged, **keys, **PLAIN)
    bench.wait_for_end(logged)
    assert bench.rows("SELECT * FROM log ORDER BY 3") == [(logged, 0, 0, "1"), (logged, 0, 1, "2")]


def test_refused_records_are_set_aside_and_the_others_are_written(bench: Bench, tables: Tables) -> None:
    bench.sql.execute("ALTER TABLE accounts ADD CHECK (balance < 1000)")
    topic = bench.topic()
    good = [(f"k{n}", {"name": str(n), "balance": n}) for n in range(300)]
    bad = [
        ("b0", "{no json"),
        ("b1", {"name": None}),
        ("b2", {"name": "N", "balance": "secret"}),
        ("b3", {"name": "N", "balance": 5000}),
        ("b4", {"name": "N", "unknown": 1}),
        ("b5", [1]),
    ]
    tables.sunk(topic, *good[:100], *bad[:3], *good[100:200], *bad[3:], *good[200:], ("b3", {"name": "later"}))
    sink = tables.run(topic, **UPSERT, **{"table.name.format": "accounts", "errors.tolerance": "all"})
    bench.wait_for_end(topic)
    assert bench.rows("SELECT count(*), sum(balance) FROM accounts") == [(300, sum(range(300)))]
    found = {(item.key or b"").decode(): item.reason for item in failed_records(bench.sql, bench.name) if item.reason}
    assert found.keys() == {"b0", "b1", "b2", "b3", "b4", "b5"}
    assert [found[key] for key in ("b0", "b4", "b5")] == [
        "is not JSON",
        (
            "table accounts has no column for unknown: add it, set auto.evolve=true, or leave the field out by"
            " fields.whitelist"
        ),
        "its value is no struct of fields",
    ]
    assert "null value in column" in str(found["b1"])
    assert "secret" not in str(found)
    wait_until(lambda: sink.board.picture()["failed"] == 7, what="the sink's own count")


def test_halves_of_a_batch_are_inserted_once(bench: Bench, tables: Tables) -> None:
    """Guarantee 16: they share a temporary table."""
    bench.sql.execute("CREATE TABLE log (name text CHECK (name <> 'bad'))")
    topic = bench.topic()
    tables.sunk(topic, *((f"k{n}", {"name": "bad" if n == 7 else str(n)}) for n in range(20)))
    tables.run(topic, **PLAIN, **{"table.name.format": "log", "errors.tolerance": "all"})
    bench.wait_for_end(topic)
    assert bench.rows("SELECT count(*), count(DISTINCT name) FROM log") == [(19, 19)]


def test_records_behind_one_that_copy_refuses_wait_for_it(bench: Bench, tables: Tables) -> None:
    bench.sql.execute("CREATE TABLE log (n int4)")
    topic = bench.topic()
    tables.sunk(topic, ("a", {"n": 1}), ("b", {"n": "x"}), ("b", {"n": 2}), ("a", {"n": 3}))
    tables.run(topic, **PLAIN, **{"table.name.format": "log", "errors.tolerance": "all"})
    bench.wait_for_end(topic)
    assert bench.rows("SELECT n FROM log ORDER BY n") == [(1,), (3,)]
    assert [item.reason is None for item in failed_records(bench.sql, bench.name)] == [False, True]


def test_the_first_failure_stops_a_sink_without_tolerance(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A"}), ("b", {"name": "B", "balance": "x"}), ("c", {"name": "C"}))
    sink = tables.run(topic, **UPSERT, **{"table.name.format": "accounts"})
    with pytest.raises(SinkStopped, match="at offset 1 "):
        sink.wait(30)
    assert bench.rows("SELECT id FROM accounts") == [("a",)]


def enveloped(fields: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    named = [{"field": name, "optional": True, **kind} for name, kind in fields.items()]
    return {"schema": {"type": "struct", "fields": named, "optional": False}, "payload": payload}


def test_tables_and_columns_are_made_from_the_schema(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    logical = "org.apache.kafka.connect.data."
    fields = {
        "i": {"type": "int32"},
        "s": {"type": "string"},
        "d": {"type": "int32", "name": f"{logical}Date"},
        "t": {"type": "int64", "name": f"{logical}Timestamp"},
        "n": {"type": "bytes", "name": f"{logical}Decimal", "parameters": {"scale": "2"}},
        "b": {"type": "bytes"},
    }
    payload = {"i": 7, "s": "x", "d": -719528, "t": -1, "n": "AZA=", "b": "AAE="}
    tables.sunk(topic, ("1", enveloped(fields, payload)), ("2", enveloped(fields, {**payload, "s": "}"})))
    more = {**fields, "more": {"type": "double"}}
    tables.sunk(topic, ("3", enveloped(more, {**payload, "more": 0.5})))
    keys = {**UPSERT, "value.converter.schemas.enable": "true", "auto.create": "true", "auto.evolve": "true"}
    tables.run(topic, **keys)
    bench.wait_for_end(topic)
    found = bench.rows(f'SELECT id, i, s, d::text, t::text, n::text, b, more FROM "{topic}" ORDER BY id')
    row = (7, "x", "0001-01-03 BC", "1969-12-31 23:59:59.999", "4.00", b"\x00\x01")
    assert found == [("1", *row, None), ("2", 7, "}", *row[2:], None), ("3", *row, 0.5)]


def test_tables_that_can_not_be_made_from_the_records(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A"}))
    bare = tables.run(topic, **UPSERT, **{"auto.create": "true"})
    with pytest.raises(SinkStopped, match="has no schema, so the type of column name is unknown: create the column"):
        bare.wait(30)
    bench.sql.execute("CREATE TABLE few (id text PRIMARY KEY)")
    other = bench.topic()
    tables.sunk(other, ("a", enveloped({"name": {"type": "string", "optional": False}}, {"name": "A"})))
    keys = {**UPSERT, "value.converter.schemas.enable": "true", "auto.evolve": "true", "table.name.format": "few"}
    needed = tables.run(other, **keys)
    with pytest.raises(SinkStopped, match="table few can't get column name: the field is not optional"):
        needed.wait(30)


def test_a_group_of_the_connector_is_taken_over(bench: Bench, tables: Tables) -> None:
    """The sink goes on where Kafka Connect has stopped."""
    topic, group = bench.topic(), bench.unique("connect-accounts")
    tables.sunk(topic, ("a", {"name": "A"}), ("b", {"name": "B"}))
    consumer = bench.kafka.member({"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    tables.run(topic, **UPSERT, **{"table.name.format": "accounts", "consumer.override.group.id": group})
    bench.wait_for_end(topic)
    assert bench.rows("SELECT id FROM accounts") == [("b",)]


def test_a_missing_table_stops_it_with_the_remedy(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A"}))
    sink = tables.run(topic, **UPSERT, **{"errors.tolerance": "all"})
    with pytest.raises(ConfigError, match=r"there is no table .*set auto.create=true"):
        sink.wait(30)
    assert failed_records(bench.sql) == []
    wait_until(lambda: not sink.alive, what="its end")


def test_many_new_rows_are_copied_into_the_table_and_known_ones_merged(bench: Bench, tables: Tables) -> None:
    topic, again = bench.topic(), bench.topic()
    tables.sunk(topic, *((f"k{n}", {"name": str(n), "balance": n}) for n in range(2500)))
    keys = {**UPSERT, "table.name.format": "accounts", "errors.tolerance": "all"}
    tables.run(f"{topic},{again}", **keys)
    bench.wait_for_end(topic)
    assert bench.rows("SELECT count(*), sum(balance) FROM accounts") == [(2500, sum(range(2500)))]
    tables.sunk(again, *((f"k{n}", {"name": str(n), "balance": 1}) for n in range(1500, 4000)), ("k0", {"name": None}))
    bench.wait_for_end(again)
    assert bench.rows("SELECT count(*), sum(balance) FROM accounts") == [(4000, sum(range(1500)) + 2500)]
    assert [item.key for item in failed_records(bench.sql, bench.name)] == [b"k0"]


def test_a_table_without_a_unique_key_is_not_copied_into(bench: Bench, tables: Tables) -> None:
    bench.sql.execute("CREATE TABLE plain (id text, name text)")
    topic = bench.topic()
    tables.sunk(topic, *((f"k{n}", {"name": str(n)}) for n in range(1500)))
    sink = tables.run(topic, **UPSERT, **{"table.name.format": "plain"})
    with pytest.raises(CompactoryError):
        sink.wait(30)
    assert bench.rows("SELECT FROM plain") == []


def test_a_record_is_written_when_it_is_retried_after_its_column_was_altered(bench: Bench, tables: Tables) -> None:
    bench.sql.execute("ALTER TABLE accounts ALTER extra TYPE varchar(3)")
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A", "balance": "x", "extra": "e"}), ("b", {"name": "B", "extra": "long"}))
    tables.sunk(topic, ("c", {"name": "C", "balance": 3, "extra": "e"}), ("d", {"name": "D", "extra": "e"}))
    tables.run(topic, **UPSERT, **{"table.name.format": "accounts", "errors.tolerance": "all"})
    bench.wait_for_end(topic)
    assert bench.rows("SELECT id FROM accounts ORDER BY id") == [("c",), ("d",)]
    bench.sql.execute("ALTER TABLE accounts ALTER balance TYPE text, ALTER extra TYPE varchar(9)")
    assert retry(bench.sql, bench.name) == 2
    wait_until(lambda: failed_records(bench.sql) == [], what="both records")
    rows = bench.rows("SELECT id, balance, extra FROM accounts ORDER BY id")
    assert rows == [("a", "x", "e"), ("b", None, "long"), ("c", "3", "e"), ("d", None, "e")]

"""Names of tables, columns and topics in ``compactory sink run``: quotes, lengths, patterns, columns of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactory.errors import CompactoryError
from compactory_connectors.sink.operators import failed_records
from tests.sink.harness import Bench
from tests.sink.test_tables import ACCOUNTS, PLAIN, UPSERT, Tables
from tests.source.workload import wait_until

ASIDE = {"errors.tolerance": "all"}


@pytest.fixture
def tables(bench: Bench, tmp_path: Path) -> Iterator[Tables]:
    bench.sql.execute(ACCOUNTS)
    tables = Tables(bench, tmp_path)
    yield tables
    tables.close()


def test_a_pattern_of_java_reads_its_topics_and_those_that_come_later(bench: Bench, tables: Tables) -> None:
    first, stem = bench.topic(), bench.unique("sunk")
    names = [f"{stem}.7", f"{stem}.8"]
    bench.kafka.create_topic(names[0])
    tables.sunk(first, ("no", {"name": "no"}))
    tables.sunk(names[0], ("a", {"name": "A"}))
    keys = {"topics.regex": rf"{stem}\.(?:\d++|x)", "table.name.format": "accounts"}
    tables.run("", **UPSERT, **keys)
    wait_until(lambda: bench.rows("SELECT id FROM accounts") == [("a",)], 30, "the first topic")
    bench.kafka.create_topic(names[1])
    tables.sunk(names[1], ("b", {"name": "B"}))
    wait_until(lambda: bench.rows("SELECT id FROM accounts ORDER BY 1") == [("a",), ("b",)], 30, "the topic made later")


@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
def test_columns_that_the_server_makes_are_left_out(bench: Bench, tables: Tables, mode: str) -> None:
    bench.sql.execute(
        "CREATE TABLE made (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int,"
        " twice int GENERATED ALWAYS AS (n * 2) STORED, number int GENERATED ALWAYS AS IDENTITY)"
    )
    bench.sql.execute("INSERT INTO made (id, n) OVERRIDING SYSTEM VALUE VALUES (70, 0)")
    topic = bench.topic()
    tables.sunk(topic, *(("k", {"id": key, "n": 5, "twice": 11, "number": 12}) for key in (70, 71)[mode == "insert" :]))
    keys = {"insert.mode": mode, "pk.mode": "record_value", "pk.fields": "id", "auto.evolve": "true"}
    tables.run(topic, **PLAIN, **keys, **{"table.name.format": "made"})
    bench.wait_for_end(topic)
    expected = {"insert": [(70, 0, 0), (71, 5, 10)], "upsert": [(70, 5, 10), (71, 5, 10)], "update": [(70, 5, 10)]}
    assert bench.rows("SELECT id, n, twice FROM made ORDER BY id") == expected[mode]


@pytest.mark.parametrize("name", ['"odd.schema"."a ""table"""', "{database}.public.accounts", '"accounts"'])
def test_the_name_of_a_table_may_have_quotes_and_three_parts(bench: Bench, tables: Tables, name: str) -> None:
    bench.sql.execute('CREATE SCHEMA "odd.schema"')
    bench.sql.execute('CREATE TABLE "odd.schema"."a ""table""" (LIKE accounts INCLUDING ALL)')
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A"}))
    named = name.replace("{database}", f'"{bench.sql.info.dbname}"')
    tables.run(topic, **UPSERT, **{"table.name.format": named})
    bench.wait_for_end(topic)
    table = "accounts" if "accounts" in name else name
    assert bench.rows(f"SELECT id FROM {table}") == [("a",)]


def test_a_table_without_the_unique_constraint_is_named(bench: Bench, tables: Tables) -> None:
    bench.sql.execute("CREATE TABLE bare (id text, name text)")
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A"}))
    sink = tables.run(topic, **UPSERT, **{"table.name.format": "bare"})
    with pytest.raises(CompactoryError, match=r"table bare: .*ON CONFLICT.*42P10.*ALTER TABLE .* ADD PRIMARY KEY"):
        sink.wait(30)


def test_a_table_whose_column_was_dropped_is_named(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A", "balance": 1}))
    sink = tables.run(topic, **UPSERT, **{"table.name.format": "accounts"})
    bench.wait_for_end(topic)
    bench.sql.execute("ALTER TABLE accounts DROP COLUMN balance")
    tables.sunk(topic, ("b", {"name": "B", "balance": 1}))
    with pytest.raises(CompactoryError, match=r"table accounts: .*42703"):
        sink.wait(30)


@pytest.mark.parametrize("field", ["f" * 64, "é" * 40, "a\0b", ""])
def test_a_field_whose_name_is_no_column_is_refused(bench: Bench, tables: Tables, field: str) -> None:
    topic = bench.topic()
    schema = {"type": "struct", "fields": [{"field": name, "type": "int32", "optional": True} for name in ("n", field)]}
    tables.sunk(topic, (None, json.dumps({"schema": schema, "payload": {"n": 1, field: 2}})))
    tables.run(topic, **ASIDE, **{"auto.create": "true", "auto.evolve": "true", "table.name.format": "narrow"})
    bench.wait_for_end(topic)
    (record,) = failed_records(bench.sql, bench.name)
    assert "63 bytes" in (record.reason or "")
    assert "fields.whitelist" in (record.reason or "")


def test_a_table_whose_name_is_too_long_is_not_made(bench: Bench, tables: Tables) -> None:
    topic = bench.topic()
    tables.sunk(topic, ("a", {"name": "A"}))
    sink = tables.run(topic, **UPSERT, **{"auto.create": "true", "table.name.format": "t" * 55 + "${topic}"})
    with pytest.raises(CompactoryError, match=r"table\.name\.format.* 63 bytes"):
        sink.wait(30)

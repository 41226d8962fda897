"""Source → topic → sink over every column type of the golden files, and those that `compactory.types=all` keeps."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory_connectors.sink.into_table.sink_config import load_sink
from compactory_connectors.sink.into_table.writer import table_sink
from compactory_connectors.sink.operators import failed_records
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.runtime.source import Source
from tests.golden.test_columns import TABLES, VALUES
from tests.sink.harness import Bench

SETUP = [*TABLES["setup"], "CREATE TYPE address AS (street text, number int)", "CREATE EXTENSION hstore"]
MORE = {
    "int2[]": ["'{}'", "'{1,NULL,-3}'"],
    "int8[][]": ["'{{1,2},{3,NULL}}'"],
    "text[]": ["""'{a,"b,\\"c\\\\d",NULL,"NULL","",é😀}'"""],
    "bool[]": ["'{t,f,NULL}'"],
    "numeric(10,2)[]": ["'{1.50,NULL,-0.01}'"],
    "float8[]": ["'{1.5,NULL,NaN,Infinity,-Infinity}'"],
    "bytea[]": ["""ARRAY['\\x00ff'::bytea, NULL, '\\x'::bytea]"""],
    "date[]": ["'{2024-02-29,NULL}'"],
    "time(3)[]": ["'{12:34:56.789,NULL}'"],
    "timestamp(3)[]": ["'{2024-01-01 11:11:11.123,NULL,infinity}'"],
    "timestamptz(3)[]": ["'{2024-01-01 11:11:11.123+02,NULL}'"],
    "uuid[]": ["'{00000000-0000-0000-0000-00000000000a,NULL}'"],
    "jsonb[]": ["""ARRAY['{"a": 1}'::jsonb, NULL, '"x"'::jsonb]"""],
    "mood[]": ["ARRAY['sad'::mood, NULL]"],
    "interval": ["'1 mon 03:04:05.678901'", "'-1 day'"],
    "inet": ["'10.0.0.1/8'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "int4range": ["'[1,6)'", "'empty'"],
    "tstzrange": ["'[2024-01-01,2024-01-02)'"],
    "varbit": ["B'0101'"],
    "point": ["'(1,2)'"],
    "tsvector": ["'a fat cat'"],
    "hstore": ["""'a=>1, b=>NULL, "c\\"d"=>"e\\\\f", "=>"=>","'"""],
}
"""Types that the JDBC source connector leaves out."""

WHAT_IS_SENT = {
    "time": "{new}::interval = date_trunc('milliseconds', {old}::interval)",
    "timetz": "{new} = {old} AT TIME ZONE 'UTC' OR {new}::text = {old}::text",
    "timestamp": "{new} = date_trunc('milliseconds', {old})",
    "timestamptz": "{new} = date_trunc('milliseconds', {old})",
}
"""Where Kafka Connect's types hold less: milliseconds, in UTC. Everything else comes back as it was."""
NO_DAYS = ("1582-10-05", "1582-10-10", "1582-10-14")
"""Days that Java's calendar leaves out."""

REFUSED = {
    golden["table"]: {number for number, row in enumerate(golden["rows"]) if (row[1:] or row)[0].startswith("!")}
    for golden in VALUES
    if golden["options"] == "default"
}
"""Values that no source sends: Kafka Connect fails on them as well."""

JSON = "org.apache.kafka.connect.json.JsonConverter"
NUMBERS = {"value.converter.schemas.enable": "false", "value.converter.decimal.format": "NUMERIC"}
CONVERTERS = {
    "json": {"value.converter": JSON},
    "numeric": {"value.converter": JSON, "value.converter.decimal.format": "NUMERIC"},
    "plain": {"value.converter": JSON, **NUMBERS},
    "avro": {"value.converter": "io.confluent.connect.avro.AvroConverter"},
    "schema": {"value.converter": "io.confluent.connect.json.JsonSchemaConverter"},
}
WITHOUT_A_SCHEMA = {"bit(9)", "bit(64)", "bytea[]"}
"""Types whose values nothing tells from others where there is no schema: bytes from a text, JSON from a list."""
WITH_A_SCHEMA = {"bytea[]"}
"""Types that are a text of JSON under a schema, in which bytes are Postgres' own text."""
NEWER = {"numeric(3,-2)", "numeric(2,5)", '"char"'}
"""Types that PostgreSQL 14 does not know, or writes as bytes that are no UTF-8."""


def wide(converter: str, version: int) -> tuple[list[str], list[list[str]]]:
    """Types, and the rows of one table with a column of each: its values below each other, then the last one again."""
    values = {
        table["type"].replace("bigserial", "bigint").replace(" not null", ""): [
            value
            for number, value in enumerate(table["rows"])
            if number not in REFUSED.get(name, ()) and not any(day in value for day in NO_DAYS)
        ]
        for name, table in TABLES["tables"].items()
    } | MORE
    left_out = (WITHOUT_A_SCHEMA if converter == "plain" else WITH_A_SCHEMA) | (NEWER if version < 150000 else set())
    types = [kind for kind in values if kind not in left_out]
    longest = max(len(values[kind]) for kind in types)
    rows = [[values[kind][min(number, len(values[kind]) - 1)] for kind in types] for number in range(longest)]
    return types, rows


class Trip:
    """A source from the table ``name``, and a sink into the table ``copied``."""

    def __init__(self, bench: Bench, folder: Path, name: str, converter: str) -> None:
        self._bench, self._name = bench, name
        self._both = {"connection.url": bench.url, "key.converter": "org.apache.kafka.connect.converters.LongConverter"}
        self._both |= CONVERTERS[converter]
        if converter in {"avro", "schema"}:
            self._both["value.converter.schema.registry.url"] = f"mock://{name}"
        sink = {"topics": name, "table.name.format": "copied", "errors.tolerance": "all", "delete.enabled": "true"}
        sink |= {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id"}
        self._file = folder / f"{bench.name}.json"
        self._file.write_text(json.dumps(self._both | sink))

    def take(self, **source: str) -> None:
        """Send what the table has, and apply it."""
        smt = "org.apache.kafka.connect.transforms."
        given = {
            "table.whitelist": self._name,
            "topic.prefix": "",
            "topic.creation.default.partitions": "1",
            "transforms": "key,id",
            "transforms.key.type": f"{smt}ValueToKey",
            "transforms.key.fields": "id",
            "transforms.id.type": f"{smt}ExtractField$Key",
            "transforms.id.field": "id",
            **source,
        }
        connector = parse_connector(json.dumps(self._both | given), default_name=self._name)
        Source(connector, self._bench.kafka).run(threading.Event(), once=True)
        with table_sink(load_sink(self._file), self._bench.kafka):
            self._bench.wait_for_end(self._name)
        assert [item.reason for item in failed_records(self._bench.sql)] == []


@pytest.mark.parametrize("converter", CONVERTERS)
def test_every_column_type_comes_back(
    bench: Bench, tmp_path: Path, unique: Callable[[str], str], converter: str
) -> None:
    name = unique("wide").replace("-", "_")
    types, rows = wide(converter, bench.sql.info.server_version)
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    bench.sql.execute("SET TimeZone = 'UTC'")
    bench.sql.execute("; ".join(SETUP).encode())
    bench.sql.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, {columns})".encode())
    bench.sql.execute(f"CREATE TABLE copied (LIKE {name} INCLUDING ALL)")
    values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows))
    bench.sql.execute(f"INSERT INTO {name} VALUES {values}".encode())
    Trip(bench, tmp_path, name, converter).take(mode="bulk", **{"compactory.types": "all"})
    assert bench.rows("SELECT count(*) FROM copied") == [(len(rows),)]
    wrong = []
    for number, kind in enumerate(types):
        same = WHAT_IS_SENT.get(kind, equality(kind)).format(new=f"copied.c{number}", old=f"old.c{number}")
        missing = f"(copied.c{number} IS NULL) <> (old.c{number} IS NULL)"
        found = f"SELECT id, old.c{number}::text, copied.c{number}::text FROM {name} AS old JOIN copied USING (id)"
        wrong += [(kind, *row) for row in bench.rows(f"{found} WHERE {missing} OR NOT ({same})")]
    assert wrong == []


def test_rows_that_change_and_rows_that_go_do_so_at_the_end(
    bench: Bench, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name = unique("kept").replace("-", "_")
    stamp = "updated timestamp NOT NULL DEFAULT clock_timestamp()"
    bench.sql.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, v text, {stamp}, active boolean NOT NULL)")
    bench.sql.execute("CREATE TABLE copied (id int8 PRIMARY KEY, v text, updated timestamp, active boolean)")
    bench.sql.execute(f"INSERT INTO {name} SELECT n, 'v' || n, clock_timestamp(), true FROM generate_series(1, 5) AS n")
    trip, columns = Trip(bench, tmp_path, name, "plain"), {"timestamp.column.name": "updated"}
    columns |= {"incrementing.column.name": "id", "compactory.soft.delete.column": "active"}
    trip.take(mode="timestamp+incrementing", **columns)
    assert bench.rows("SELECT id, v FROM copied ORDER BY id") == [(n, f"v{n}") for n in range(1, 6)]
    bench.sql.execute(f"UPDATE {name} SET v = 'x', active = id <> 2, updated = clock_timestamp() WHERE id IN (2, 4)")
    trip.take(mode="timestamp+incrementing", **columns)
    assert bench.rows("SELECT id, v FROM copied ORDER BY id") == [(1, "v1"), (3, "v3"), (4, "x"), (5, "v5")]


def equality(kind: str) -> str:
    """Texts are the same, but for zeros at the end of numbers."""
    return "{new} = {old}" if kind.startswith(("numeric", "dnum")) else "{new}::text = {old}::text"

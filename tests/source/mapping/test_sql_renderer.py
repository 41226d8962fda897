"""Postgres writes the bytes that the converters write, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.mapping.row_plan import RowPlan, compile_plan
from compactory_connectors.source.mapping.sql_renderer import respelt
from compactory_connectors.source.postgres.chunk_reader import RawRow, raw_rows
from tests.source.described import describe_tables

GOLDEN = Path(__file__).parents[2] / "golden"
APACHE = "org.apache.kafka.connect.transforms."
TYPES = {
    "i2": "int2", "i4": "int4", "i8": "int8", "o": "oid", "b": "bool", "t": "text", "v": "varchar(40)", "c": "char(9)",
    "n": "name", "u": "uuid", "j": "json", "jb": "jsonb", "m": "mood", "dt": "label", "by": "bytea", "d": "date",
    "tm": "time", "ts": "timestamp", "tz": "timestamptz", "w": "timestamp", "wz": "timestamptz",
}  # fmt: skip
TABLE = """
CREATE TYPE mood AS ENUM ('happy', 'so "so"', 'sad \\');
CREATE DOMAIN label AS text CHECK (length(VALUE) < 1000);
CREATE TABLE nasty (id int8 PRIMARY KEY, {columns});
"""

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
NASTY = st.text(
    st.sampled_from("a\"\\/u00\b\t\n\f\r\x01\x0b\x0e\x1a\x1f\x7f\x80\u2028\uffff\U00010000\U0001f600\U0010ffff{}%'"),
    max_size=20,
)
ANY_TEXT = st.one_of(TEXTS, NASTY, st.sampled_from(["", "null", "\\u001f", "\\\\u001f", "\\\\\\u000b", "é" * 30]))
DATES = ["1970-01-01", "1582-10-04", "1582-10-15", "1583-01-01", "1582-12-31", "1900-02-28", "2000-02-29",
         "2024-02-29", "9999-12-31", "10000-01-01", "0001-01-01",
         "0044-03-15 BC", "4713-01-01 BC", "infinity", "-infinity"]  # fmt: skip
CLOCKS = [
    "00:00:00",
    "23:59:59.999999",
    "12:00:00.1",
    "12:00:00.0005",
    "23:59:60",
    "00:00:00.000999",
    "01:02:03.123456",
]
DAYS = st.one_of(st.sampled_from(DATES), st.dates().map(str))


@st.composite
def moments(draw: st.DrawFn, zone: str = "") -> str:
    day = draw(DAYS)
    if "infinity" in day:
        return day
    bare, _, era = day.partition(" ")
    clock = draw(st.one_of(st.sampled_from(CLOCKS), st.times().map(str)))
    return f"{bare} {clock}{zone}" + (f" {era}" if era else "")


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i2": whole(16), "i4": whole(32), "i8": whole(64), "o": st.integers(0, (1 << 32) - 1), "b": st.booleans(),
    "t": ANY_TEXT, "v": ANY_TEXT.map(lambda text: text[:40]), "c": ANY_TEXT.map(lambda text: text[:9]),
    "n": ANY_TEXT.map(lambda text: text.encode()[:60].decode(errors="ignore")), "u": st.uuids().map(str),
    "j": ANY_TEXT.map(lambda text: json.dumps({"a": text}, ensure_ascii=False)), "dt": ANY_TEXT,
    "jb": ANY_TEXT.map(lambda text: json.dumps([text, {"b": 1.50}])),
    "m": st.sampled_from(["happy", 'so "so"', "sad \\"]),
    "by": st.binary(max_size=200), "d": DAYS,
    "tm": st.one_of(st.sampled_from([*CLOCKS, "24:00:00"]), st.times().map(str)),
    "ts": moments(), "tz": moments("+00"), "w": moments(), "wz": moments("+05:30"),
}  # fmt: skip
ROWS = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


def connector(url: str, table: str, **changes: str) -> Any:
    stamps = {
        f"transforms.{name}.{option}": value
        for name, field, pattern in (
            ("stamp", "w", "yyyy-MM-dd HH:mm:ss.SSS"),
            ("zoned", "wz", "dd.MM.yyyy'T'HH:mm:ss'Z', SSS"),
        )
        for option, value in {
            "type": f"{APACHE}TimestampConverter$Value",
            "target.type": "string",
            "field": field,
            "format": pattern,
        }.items()
    }
    written = {
        "connection.url": url,
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "topic.prefix": "p-",
        "table.whitelist": table,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "transforms": "key,take,stamp,zoned,names,extra",
        "transforms.key.type": f"{APACHE}ValueToKey",
        "transforms.key.fields": "t",
        "transforms.take.type": f"{APACHE}ExtractField$Key",
        "transforms.take.field": "t",
        **stamps,
        "transforms.names.type": f"{APACHE}ReplaceField$Value",
        "transforms.names.renames": 'i4:four "\\ \U0001f600 % {}',
        "transforms.extra.type": f"{APACHE}InsertField$Value",
        "transforms.extra.static.field": "fixed",
        "transforms.extra.static.value": "it's \\ \x01 \U0001f600",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    named = written["transforms"].split(",")
    settings_without_nulls = {
        name: value
        for name, value in written.items()
        if not name.startswith("transforms.") or name.split(".")[1] in named
    }
    return parse_connector(json.dumps(settings_without_nulls), default_name="c", environment={})


class TwoRenderers:
    """A table, whose rows the converters write, and Postgres."""

    def __init__(self, url: str, table: str, config: Any) -> None:
        self.connection = connect(conninfo_to_dict(url))
        (described,) = describe_tables(self.connection, config)
        self.plan: RowPlan = compile_plan(config, described)
        self.table = sql.Identifier(table)

    def rendered(self) -> list[Any]:
        """Key and value of every row as the converters write them; what a row fails with in its place."""
        columns = sql.SQL(", ").join(map(sql.Identifier, self.plan.columns))
        query = sql.SQL("SELECT {} FROM {} ORDER BY id").format(columns, self.table)
        return [self._render(row) for row in raw_rows(self.connection.execute(query))]

    def _render(self, row: RawRow) -> Any:
        try:
            return self.plan.render(row)
        except ValueError as error:
            return error

    def formatted(self) -> list[Any]:
        """The same as Postgres writes them; None for a row that goes the ordinary way."""
        parts = self.plan.formatted
        assert parts is not None
        fallback = parts.fallback or sql.SQL("false")
        query = sql.SQL("SELECT {}, {}, ({}) IS TRUE FROM {} AS t ORDER BY id")
        rows = raw_rows(self.connection.execute(query.format(parts.key, parts.value, fallback, self.table)))
        keys, values = [row[0] for row in rows], [row[1] for row in rows]
        keys = respelt(keys) if parts.key_escapes else keys
        values = respelt(values) if parts.value_escapes else values
        return [None if row[2] == b"t" else (key, value) for row, key, value in zip(rows, keys, values, strict=True)]


@pytest.fixture(scope="module")
def table(shared: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A table with a column of every type that Postgres writes itself."""
    with psycopg.connect(shared, autocommit=True) as owner:
        owner.execute(TABLE.format(columns=", ".join(f"{name} {kind}" for name, kind in TYPES.items())))
        yield shared, owner


@pytest.fixture(scope="module")
def plain(table: tuple[str, Any]) -> Iterator[TwoRenderers]:
    renderers = TwoRenderers(table[0], "nasty", connector(table[0], "nasty"))
    yield renderers
    renderers.connection.close()


@pytest.fixture(scope="module")
def schemas(table: tuple[str, Any]) -> Iterator[TwoRenderers]:
    """TwoRenderers halves as JSON, with their schemas; the key is a struct."""
    json_key = {"key.converter": "org.apache.kafka.connect.json.JsonConverter", "transforms": "key,stamp,zoned,names"}
    changes = {**json_key, "transforms.key.fields": "t,d,i8", "value.converter.schemas.enable": "true"}
    renderers = TwoRenderers(table[0], "nasty", connector(table[0], "nasty", **changes))
    yield renderers
    renderers.connection.close()


def fill(owner: psycopg.Connection[Any], rows: list[dict[str, Any]]) -> None:
    owner.execute("TRUNCATE nasty")
    names = sql.SQL(", ").join(map(sql.Identifier, TYPES))
    places = sql.SQL(", ").join(sql.SQL("%s::") + sql.SQL(kind) for kind in TYPES.values())
    insert = sql.SQL("INSERT INTO nasty (id, {}) VALUES (%s, {})").format(names, places)
    with owner.cursor() as cursor:
        cursor.executemany(insert, [(number, *(row[name] for name in TYPES)) for number, row in enumerate(rows)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(ROWS, min_size=1, max_size=30))
def test_both_ways_write_the_same_bytes(
    table: tuple[str, psycopg.Connection[Any]], plain: TwoRenderers, schemas: TwoRenderers, rows: list[dict[str, Any]]
) -> None:
    fill(table[1], rows)
    for renderers in (plain, schemas):
        for row, expected_record, formatted in zip(rows, renderers.rendered(), renderers.formatted(), strict=True):
            assert formatted == expected_record or (formatted is None and out_of_range(row)), row


def out_of_range(row: dict[str, Any]) -> bool:
    """Return True if a row may go the ordinary way: it has no key, or a time that the calendars write differently."""
    times = [row[name] for name in ("d", "ts", "tz", "w", "wz") if row[name] is not None]
    return row["t"] is None or any(
        "infinity" in text or "BC" in text or text[:4] < "1584" or text[4] != "-" or text > "9999-12-31"
        for text in times
    )


@pytest.mark.parametrize("name", ["plain", "seed-smts"])
def test_what_postgres_writes_is_what_the_real_connector_wrote(name: str, database: str) -> None:
    """The golden files, without the numbers that Postgres is not trusted with."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute((GOLDEN / "all_types.sql").read_text())
    written = json.loads((GOLDEN / f"{name}.config.json").read_text())
    numbers = ("c_real", "c_double", "c_num10_2", "c_num5_0", "c_num18_0", "c_num38_0", "c_num")
    written["transforms"] = ",".join(filter(None, ["less", written.get("transforms", "")]))
    written["transforms.less.type"] = f"{APACHE}ReplaceField$Value"
    written["transforms.less.exclude"] = ",".join(numbers)
    renderers = TwoRenderers(
        database, "all_types", parse_connector(json.dumps(written), default_name="c", environment={})
    )
    expected_records = []
    for record in json.loads((GOLDEN / f"{name}.topic.json").read_text())["records"]:
        value = json.loads(record["value"])
        left_out = {*numbers, *map(_camel, numbers)}
        payload = {name: item for name, item in value.get("payload", value).items() if name not in left_out}
        expected_records.append((record["key"], payload))
    formatted = renderers.formatted()
    renderers.connection.close()
    assert None not in formatted
    for (key, value), (golden_key, payload) in zip(formatted, expected_records, strict=True):
        assert key == (golden_key and golden_key.encode())
        text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        assert value == text or value.endswith(b',"payload":' + text + b"}")


def _camel(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(part.capitalize() for part in words)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("float8", {}),
        ("numeric(10,2)", {}),
        ("text[]", {"compactory__types": "all"}),
        ("timetz", {}),
        ("text", {"value__converter": "org.apache.kafka.connect.storage.StringConverter"}),
        ("timestamp", {"timestamp__granularity": "micros_long"}),
        ("timestamp", {"db__timezone": "Europe/Berlin"}),
        ("timestamp", {"transforms__stamp__format": "d.M.yyyy"}),
    ],
)
def test_what_is_not_proven_goes_the_ordinary_way(shared: str, kind: str, changes: dict[str, str]) -> None:
    with psycopg.connect(shared, autocommit=True) as owner:
        owner.execute("DROP TABLE IF EXISTS other")
        owner.execute(f"CREATE TABLE other (id int8 PRIMARY KEY, t text, w timestamp, wz timestamptz, x {kind})")
    renderers = TwoRenderers(shared, "other", connector(shared, "other", **changes))
    renderers.connection.close()
    assert renderers.plan.formatted is None

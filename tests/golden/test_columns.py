"""Every column type under every option of the columns: schema and bytes are those that Kafka Connect wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from compactory_connectors.connect.converters import REGISTRY
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.json_value import schema_json
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.record.record import Node, RowError, StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.config.connector import ColumnOptions, Granularity, NumericMapping
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column
from compactory_connectors.source.postgres.chunk_reader import raw_rows
from compactory_sql import query

GOLDEN = Path(__file__).parent / "columns"
TABLES: Mapping[str, Any] = json.loads((GOLDEN / "tables.json").read_text())
RECORDED: Sequence[Any] = [json.loads(line) for line in (GOLDEN / "values.jsonl").read_text().splitlines()]
VALUES = [golden for golden in RECORDED if "PROLEPTIC_GREGORIAN" not in golden["options"]]
"""Without the calendar that the source refuses."""

TEXT = {
    "string": StringConverter(),
    "json": JsonConverter(schemas_enable=False),
    "numeric": JsonConverter(schemas_enable=False, numeric=True),
}
PRIMITIVE = {
    name: REGISTRY[f"org.apache.kafka.connect.converters.{kind}Converter"]
    for name, kind in {"bytes": "ByteArray", "bool": "Boolean", "int": "Integer"}.items()
} | {
    name: REGISTRY[f"org.apache.kafka.connect.converters.{name.capitalize()}Converter"]
    for name in ("short", "long", "float", "double")
}
READ_ALL_THE_SAME = {"c_money"}
"""pgjdbc fails on the thousands' comma of money, and nothing is gained by failing too."""

IN_MODERN_YEARS = re.compile(rb"(?!1900-01-01|9999-12-31)(?:19|[2-9]\d)\d\d-[^B]*")
"""Timestamps that are within the years 1900 to 9999 in every zone."""

BYTES = Schema(type=Type.BYTES, optional=True)

Rows = list[Sequence[bytes | None]]


def options(text: str) -> ColumnOptions:
    given = dict(item.split("=") for item in text.split(";")) if text != "default" else {}
    return ColumnOptions(
        numeric_mapping=NumericMapping(given.get("numeric.mapping", "none")),
        granularity=Granularity(given.get("timestamp.granularity", "connect_logical")),
        zone=given.get("db.timezone", "UTC"),
    )


@pytest.fixture
def tables(database: str) -> Mapping[str, tuple[list[Column], Rows]]:
    """Columns and raw rows of every golden table, as the source reads them."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("SET TimeZone = 'UTC'")
        owner.execute(";".join(TABLES["setup"]).encode())
        for name, table in TABLES["tables"].items():
            rows = ",".join(f"({number},{value})" for number, value in enumerate(table["rows"]))
            owner.execute(
                f'CREATE TABLE "{name}" (id int, c {table["type"]}); INSERT INTO "{name}" VALUES {rows}'.encode()
            )
    with connect(conninfo_to_dict(database)) as connection:
        return {name: described(connection, name) for name in TABLES["tables"]}


def described(connection: psycopg.Connection[Any], name: str) -> tuple[list[Column], Rows]:
    cursor = connection.cursor(row_factory=tuple_row)
    (oid,) = cursor.execute("SELECT to_regclass(%s)::oid", [name]).fetchone() or (None,)
    fields = ("name", "type", "type_schema", "type_kind", "typmod", "not_null", "declared")
    columns = [
        Column(**dict(zip(fields, row, strict=False))) for row in cursor.execute(query("catalog/columns"), {"oid": oid})
    ]
    every = sql.SQL("SELECT id, c FROM {} ORDER BY id").format(sql.Identifier(name))
    return columns, raw_rows(connection.execute(every))


def outcome(write: Callable[[], bytes | None]) -> str | None:
    try:
        written = write()
    except RowError:
        return "!"
    return None if written is None else written.decode()


def compiled(converter: Any, node: Node) -> Callable[[Sequence[bytes | None]], str | None]:
    """A function of the row that gives the text, or ``!`` where Connect fails."""
    try:
        render = converter.compile(node, {"id": 0, "c": 1})
    except ValueError:
        return lambda raw: None if raw[1] is None else "!"
    return lambda raw: outcome(lambda: render(raw))


def test_bytes_of_every_type_under_every_option(tables: Mapping[str, tuple[list[Column], Rows]]) -> None:
    compared = 0
    wrong: list[str] = []
    for golden in VALUES:
        columns, rows = tables[golden["table"]]
        cell = column_cell(columns[1], options(golden["options"]))
        assert cell is not None
        place = f"{golden['table']} under {golden['options']}"
        assert list(json.loads(schema_json(cell.schema, "c")).items()) == list(golden["schema"].items()), place
        writers = [compiled(converter, cell) for converter in TEXT.values()]
        for raw, expected in zip(rows, golden["rows"], strict=True):
            for want, (name, write) in zip(texts(expected), zip(TEXT, writers, strict=True), strict=True):
                got = write(raw)
                compared += 1
                if got == "!" and out_of_years(golden["options"], raw[1]):
                    continue
                if got != want and not (want == "!" and golden["table"] in READ_ALL_THE_SAME):
                    wrong.append(f"{place}, {raw[1]!r} as {name}: {got!r}, not {want!r}")
    assert not wrong, "\n".join(wrong[:20])
    assert compared > 10_000


def out_of_years(options_text: str, raw: bytes | None) -> bool:
    """Return True if a row fails because its time zone has a history that is not known for its year."""
    zone = options_text.partition("db.timezone=")[2]
    return zone[:1].isalpha() and raw is not None and not IN_MODERN_YEARS.fullmatch(raw)


def texts(expected: Sequence[Any]) -> tuple[str | None, str | None, str | None]:
    """What the three converters of text wrote; failures are alike."""
    text, in_json = expected[0], expected[1] if len(expected) > 1 else expected[0]
    numeric = expected[2] if len(expected) > 2 else "="
    three = (text, in_json, in_json if numeric == "=" else numeric)
    return tuple("!" if item is not None and item.startswith("!") else item for item in three)  # type: ignore[return-value]


def test_bytes_of_the_primitive_converters(tables: Mapping[str, tuple[list[Column], Rows]]) -> None:
    compared = 0
    for golden in VALUES:
        columns, rows = tables[golden["table"]]
        cell = column_cell(columns[1], options(golden["options"]))
        assert cell is not None
        if golden["table"] in READ_ALL_THE_SAME:
            continue
        for name, converter in PRIMITIVE.items():
            try:
                render = converter.compile(cell, {"c": 1})
            except ValueError:
                assert not any(name in row[3] for row in golden["rows"] if len(row) > 3)
                continue
            for raw, expected in zip(rows, golden["rows"], strict=True):
                if len(expected) > 1 and not out_of_years(golden["options"], raw[1]):
                    written = render(raw)
                    primitives = expected[3] if len(expected) > 3 else {}
                    assert (None if written is None else written.hex()) == primitives.get(name)
                    compared += 1
    assert compared > 200


def test_whole_records(tables: Mapping[str, tuple[list[Column], Rows]]) -> None:
    with_schema = JsonConverter(schemas_enable=True)
    for golden in VALUES:
        if golden["options"] != "default":
            continue
        columns, rows = tables[golden["table"]]
        cells = [cell for cell in map(column_cell, columns) if cell is not None]
        fields = tuple(Field(cell.column, cell.schema) for cell in cells)
        node = StructNode(Schema(type=Type.STRUCT, name=golden["table"], fields=fields), tuple(cells))
        fit = [raw for raw, row in zip(rows, golden["rows"], strict=True) if len(row) > 1][: len(golden["records"])]
        for number, converter in enumerate((TEXT["string"], TEXT["json"], with_schema)):
            if converter is TEXT["string"] and any(cell.schema == BYTES for cell in cells):
                continue  # Java writes an address
            write = compiled(converter, node)
            for raw, expected in zip(fit, golden["records"], strict=True):
                if not expected[number].startswith("!"):
                    assert write(raw) == expected[number]

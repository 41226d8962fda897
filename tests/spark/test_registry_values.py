"""Values of Avro and JSON Schema as columns, by the schemas of a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactory.errors import CompactoryError, Unreachable
from compactory_connectors.connect.converters import read_converter
from compactory_connectors.connect.record.record import StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column
from compactory_connectors.spark import export, register
from compactory_connectors.spark.failures import spark_failures
from tests.stack.schema_registry import running_registry
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = {
    "avro": "io.confluent.connect.avro.AvroConverter",
    "json-schema": "io.confluent.connect.json.JsonSchemaConverter",
}
COLUMNS = [
    Column(name="id", type="int8", not_null=True),
    Column(name="name", type="text"),
    Column(name="price", type="numeric", typmod=(10 << 16 | 2) + 4),
    Column(name="day", type="date"),
    Column(name="at", type="timestamptz"),
]
ROW = [b"7", "é😀".encode(), b"-12.50", b"2024-02-29", b"2024-01-01 00:00:00.5+00"]
NEWER = [*ROW, b"new"]


def value_of(kind: str, registry: str, columns: list[Column], row: list[bytes | None]) -> bytes:
    """Return a value as a source writes it; its schema is registered."""
    converter, problems = read_converter(FORMATS[kind], {"schema.registry.url": registry})
    assert converter is not None
    assert not problems
    cells = [cell for column in columns if (cell := column_cell(column))]
    fields = tuple(Field(cell.column, cell.schema) for cell in cells)
    node = StructNode(Schema(type=Type.STRUCT, name="terminal", fields=fields), tuple(cells))
    positions = {column.name: number for number, column in enumerate(columns)}
    written = converter.at("terminals", "value").compile(node, positions)(row)
    assert written is not None
    return written


@pytest.fixture
def registry() -> Iterator[str]:
    with running_registry() as url:
        yield url


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


@pytest.mark.parametrize("kind", FORMATS)
def test_values_have_the_columns_of_all_schemas(
    spark: SparkSession, topics: Topics, registry: str, kind: str, tmp_path: Path
) -> None:
    name = topics.create()
    newer = [*COLUMNS, Column(name="note", type="text")]
    topics.produce(
        name,
        ("a", value_of(kind, registry, COLUMNS, ROW)),
        ("b", value_of(kind, registry, newer, NEWER)),
        ("nulls", value_of(kind, registry, COLUMNS, [b"8", None, None, None, None])),
        ("gone", value_of(kind, registry, COLUMNS, ROW)),
        ("gone", None),
        ("unknown", b"\0\0\0\0\x63\2"),
        ("cut", value_of(kind, registry, COLUMNS, ROW)[:7]),
    )
    register(spark)
    options = {"directory": name, "valueFormat": kind, "schema.registry.url": registry}
    reader = spark.read.format("compactory").option("kafka.bootstrap.servers", topics.address).options(**options)
    frame = reader.load()

    expected = {"id": 7, "name": "é😀", "price": Decimal("-12.50"), "day": date(2024, 2, 29)}
    expected["at"] = datetime.fromisoformat("2024-01-01T00:00:00.500")
    assert dict(frame.dtypes) == {
        "id": "bigint", "name": "string", "price": "decimal(10,2)", "day": "date", "at": "timestamp", "note": "string",
        "_key": "string", "_op": "string", "_partition": "int", "_offset": "bigint", "_timestamp": "timestamp",
        "_error": "string",
    }  # fmt: skip
    rows = {row["_key"]: row.asDict() for row in frame.collect()}
    assert set(rows) == {"a", "b", "nulls", "unknown", "cut"}
    assert fields(rows["a"]) == {**expected, "note": None}
    assert fields(rows["b"]) == {**expected, "note": "new"}
    assert fields(rows["nulls"]) == dict.fromkeys([*expected, "note"]) | {"id": 8}
    for key in ("unknown", "cut"):
        assert rows[key]["_error"]
        assert fields(rows[key]) == dict.fromkeys([*expected, "note"])
    [row] = reader.schema("price decimal(12,4), _key string").load().where("_key = 'a'").collect()
    assert row.price == Decimal("-12.5000")
    with pytest.raises(CompactoryError, match="partition 0, offset 5"), spark_failures():
        reader.schema("id bigint").load().collect()

    report = export(
        spark, name, tmp_path / "lake", kafka=topics.address, valueFormat=kind, **{"schema.registry.url": registry}
    )
    assert (report.rows, report.bad, report.columns["price"]) == (5, 2, "decimal(10,2)")
    exported = {row["_key"]: row.asDict() for row in spark.read.parquet(report.path).collect()}
    assert fields(exported["b"]) == fields(rows["b"])


def test_a_registry_that_does_not_answer_ends_the_query(spark: SparkSession, topics: Topics, registry: str) -> None:
    name = topics.create()
    topics.produce(name, ("a", value_of("avro", registry, COLUMNS, ROW)))
    register(spark)
    reader = spark.read.format("compactory").option("kafka.bootstrap.servers", topics.address)
    reader = reader.options(directory=name, valueFormat="avro", **{"schema.registry.url": "http://127.0.0.1:9"})
    with pytest.raises(Unreachable, match="Schema Registry was not reached"), spark_failures():
        reader.schema("id bigint, _error string").load().collect()


def fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}

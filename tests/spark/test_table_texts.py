"""What Spark holds is written as a real Postgres sends the same values to a source."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from datetime import UTC, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from compactory_connectors.connect.javatext.java_number import double_text, float_text
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.postgres.chunk_reader import raw_rows
from compactory_connectors.spark.column_types import parse_type
from compactory_connectors.spark.into_topic.jsonb_text import jsonb_text
from compactory_connectors.spark.into_topic.table_columns import unwritable
from compactory_connectors.spark.into_topic.table_records import as_postgres, text_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NASTY = st.text(st.sampled_from("a\"\\/\b\t\n\f\r\x01\x1f\x7f\x80\u2028\uffff\U0001f600\U0010ffff{}%' "), max_size=20)
ANY_TEXT = st.one_of(TEXTS, NASTY)
NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 1e300, 1.5e-300]),
)
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, ANY_TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(ANY_TEXT, inner, max_size=4)),
    max_leaves=12,
)
ALMOST_JSON = st.text(st.sampled_from('{}[]":,0123-+.eEtrufalsn\\ \n'), max_size=12)
MOMENTS = st.one_of(
    st.datetimes(),
    st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
)
FLOATS = st.one_of(
    st.floats(),
    st.integers(-(10**18), 10**18).map(float),
    st.integers(-330, 308).map(lambda power: float(f"1e{power}")),
    st.decimals(-(10**6), 10**6, places=4).map(float),
    st.sampled_from([1e15, 999999999999999.0, 1e14, 0.0001, 0.00001, 5e-324, -0.0, 123456.0, 1e6, 999999.0]),
)


def single(value: float) -> float:
    """The nearest float32."""
    return value if math.isinf(value) or abs(value) > 3.4e38 else struct.unpack("f", struct.pack("f", value))[0]


def clock(at: time) -> str:
    """As Postgres writes it."""
    return str(at).rstrip("0") if at.microsecond else str(at)


COLUMNS: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "b": ("boolean", pa.bool_(), st.booleans()),
    "i2": ("smallint", pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i4": ("integer", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i8": ("bigint", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "n2": ("numeric(10,2)", pa.decimal128(10, 2), st.decimals(-99999999, 99999999, places=2)),
    "n0": ("numeric(38,0)", pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    "n9": ("numeric(18,9)", pa.decimal128(18, 9), st.decimals(-1, 1, places=9)),
    "f8": ("double precision", pa.float64(), FLOATS),
    "f4": ("real", pa.float32(), FLOATS.filter(lambda value: abs(value) < 3e38 or value != value).map(single)),
    "t": ("text", pa.string(), ANY_TEXT),
    "v": ("character varying(30)", pa.string(), ANY_TEXT),
    "c": ("character(30)", pa.string(), ANY_TEXT.map(lambda text: text.ljust(30))),
    "u": ("uuid", pa.string(), st.uuids().map(str)),
    "j": ("json", pa.string(), DOCUMENTS.map(json.dumps)),
    "jb": ("jsonb", pa.string(), DOCUMENTS.map(lambda value: json.dumps(value, ensure_ascii=False))),
    "by": ("bytea", pa.binary(), st.binary(max_size=20)),
    "d": ("date", pa.date32(), st.dates()),
    "ts": ("timestamp without time zone", pa.timestamp("us"), MOMENTS),
    "tz": ("timestamp with time zone", pa.timestamp("us", "UTC"), MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    "tm": (
        "time without time zone",
        pa.string(),
        st.times().map(lambda at: str(at).rstrip("0") if at.microsecond else str(at)),
    ),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, (_, _, values) in COLUMNS.items()}),
    min_size=30,
    max_size=60,
)


def texts(kind: str, column: pa.Array) -> list[bytes | RowError | None]:
    return text_reader(parse_type(kind))(column)


@pytest.fixture(scope="module")
def table(postgres_server: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection as a source's, to an empty table with a column of each type."""
    with connect(conninfo_to_dict(postgres_server.url())) as connection:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
        connection.execute(f"CREATE TEMPORARY TABLE every (row int, {columns})")
        yield connection


@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(rows=ROWS)
def test_every_type_is_written_as_postgres_sends_it(
    spark: SparkSession, table: psycopg.Connection[Any], rows: list[dict[str, Any]]
) -> None:
    table.execute("TRUNCATE every")
    given_as = ", ".join(f"%({name})s::{kind}" for name, (kind, _, _) in COLUMNS.items())
    for number, row in enumerate(rows):
        table.execute(f"INSERT INTO every VALUES ({number}, {given_as})", row)
    sent = raw_rows(table.execute(f"SELECT {', '.join(COLUMNS)} FROM every ORDER BY row"))
    arrow = pa.table({name: pa.array([row[name] for row in rows], held) for name, (_, held, _) in COLUMNS.items()})
    ddl = ", ".join(f"{name} {parse_type(kind).spark}" for name, (kind, _, _) in COLUMNS.items())
    written = [f"{as_postgres(name, parse_type(kind))} AS {name}" for name, (kind, _, _) in COLUMNS.items()]
    found = spark.createDataFrame(arrow, ddl).coalesce(1).selectExpr(*written).toArrow().combine_chunks()
    for position, (name, (kind, _, _)) in enumerate(COLUMNS.items()):
        mine, its = texts(kind, found.column(name).combine_chunks()), [row[position] for row in sent]
        assert mine == its or _same_number(kind, mine, its), kind


def _same_number(kind: str, mine: list[Any], its: list[Any]) -> bool:
    """Spark writes floats as Java does, and so does a record, whatever digits Postgres sends."""
    java = {"double precision": double_text, "real": float_text}.get(kind)
    return java is not None and all(one == two or java(one) == java(two) for one, two in zip(mine, its, strict=True))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.one_of(DOCUMENTS.map(json.dumps), st.text(st.sampled_from('{}[]":,0123-+.eEtrufalsn\\ \n'), max_size=12))
)
@example('{"bb": 1, "a": 2, "a": 3, "": 0, "é": 1}')
@example("[1E3, 1.50e0, 1.000e2, -0, -0.0, 1e-2, 1E+5, 0e10]")
@example('"\\u0000"')
@example('"\\ud83d\\ude00"')
@example('"\\ud83d"')
@example("NaN")
@example("[-Infinity]")
@example('"\t"')
@example("")
@example("1e131072")
@example("1e-16384")
@example("[1,]")
@example("01")
def test_jsonb_is_spelt_as_postgres_spells_it(table: psycopg.Connection[Any], text: str) -> None:
    try:
        ((its,),) = raw_rows(table.execute("SELECT %s::jsonb", [text]))
    except psycopg.Error:
        its = None
    mine = jsonb_text(text.encode())
    assert (None if isinstance(mine, RowError) else mine) == its


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("uuid", "x"),
        ("time", "1:00"),
        ("time", "01:00:00.10"),
        ("time", "25:00:00"),
        ("oid", "-1"),
        ("oid", "007"),
    ],
)
def test_a_string_that_postgres_would_spell_otherwise_is_no_value(kind: str, value: str) -> None:
    (found,) = texts(kind, pa.array([value]))
    assert isinstance(found, RowError)
    assert value not in str(found)


def test_types_that_only_postgres_can_spell() -> None:
    for name in ("inet", "interval", "int4range", "text[]", "timetz", "hstore", "bit(3)", "mood"):
        assert "only Postgres itself" in (unwritable(parse_type(name)) or "")
    assert unwritable(parse_type("mood"), "e") is None
    assert texts("mood", pa.array(['so "so"', None])) == [b'so "so"', None]

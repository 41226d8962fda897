"""Converters of whole records: options, nulls, classes that don't go with a schema, and random records read back."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.connect.converters import REGISTRY, read_converter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.javatext.java_zone import read_zone
from compactory_connectors.connect.record.record import Cell, Constant, Java, RowError, StructNode
from compactory_connectors.connect.record.schema import DATE, DECIMAL, Field, Schema, Type
from compactory_connectors.source.config.connector import ColumnOptions, Granularity
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column

KAFKA = "org.apache.kafka.connect."
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
Raw = Callable[[Any], bytes]


def cell(kind: str, typmod: int = -1, *, not_null: bool = False) -> Cell:
    found = column_cell(Column(name=kind, type=kind, typmod=typmod, not_null=not_null))
    assert found is not None
    return found


def struct_of(cells: Sequence[Cell], name: str | None = "t") -> StructNode:
    fields = tuple(Field(item.column, item.schema) for item in cells)
    return StructNode(Schema(type=Type.STRUCT, name=name, fields=fields), tuple(cells))


def timestamp_text(moment: datetime) -> bytes:
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction}".encode()


MODERN = st.datetimes(datetime(1900, 1, 1), datetime(9999, 12, 31))  # noqa: DTZ001
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
COLUMNS: dict[str, tuple[Cell, st.SearchStrategy[Any], Raw, Callable[[Any], Any]]] = {
    # column: its values, Postgres' text of one, what JSON has of it
    "bool": (cell("bool"), st.booleans(), lambda v: b"t" if v else b"f", bool),
    "int4": (cell("int4"), st.integers(-(2**31), 2**31 - 1), lambda v: b"%d" % v, int),
    "float8": (
        cell("float8"),
        st.floats(allow_nan=False, allow_infinity=False),
        lambda v: repr(v).removesuffix(".0").encode(),
        float,
    ),
    "text": (cell("text"), TEXT, str.encode, str),
    "bytea": (cell("bytea"), st.binary(max_size=9), lambda v: b"\\x" + v.hex().encode(), None.__class__),
    "date": (
        cell("date"),
        st.dates(date(1600, 1, 1)),
        lambda v: v.isoformat().encode(),
        lambda v: (v - EPOCH.date()).days,
    ),
    "timestamp": (cell("timestamp"), MODERN, timestamp_text, lambda v: (v - EPOCH) // timedelta(milliseconds=1)),
}
RECORD = struct_of([column for column, *_ in COLUMNS.values()])
POSITIONS = {name: number for number, name in enumerate(COLUMNS)}
VALUES = st.tuples(*(st.none() | values for _, values, *_ in COLUMNS.values()))


@given(VALUES)
def test_json_records_read_back(values: tuple[Any, ...]) -> None:
    row = [None if v is None else raw(v) for v, (_, _, raw, _) in zip(values, COLUMNS.values(), strict=True)]
    for schemas in (False, True):
        written = JsonConverter(schemas_enable=schemas).compile(RECORD, POSITIONS)(row)
        assert written is not None
        read = json.loads(written)
        payload = read["payload"] if schemas else read
        assert list(payload) == list(COLUMNS)
        for value, (name, (_, _, _, in_json)) in zip(values, COLUMNS.items(), strict=True):
            if value is None:
                assert payload[name] is None
            elif name == "bytea":
                assert b64decode(payload[name]) == value
            else:
                assert payload[name] == in_json(value)
        if schemas:
            assert [item["field"] for item in read["schema"]["fields"]] == list(COLUMNS)
            assert read["schema"]["name"] == "t"


@given(VALUES)
def test_texts_leave_out_what_is_null(values: tuple[Any, ...]) -> None:
    cells = [column for name, (column, *_) in COLUMNS.items() if name != "bytea"]
    row = [None if v is None else raw(v) for v, (_, _, raw, _) in zip(values, COLUMNS.values(), strict=True)]
    written = StringConverter().compile(struct_of(cells), POSITIONS)(row)
    assert written is not None
    present = [name for name, value in zip(COLUMNS, values, strict=True) if value is not None and name != "bytea"]
    assert written.startswith(b"Struct{")
    assert written.endswith(b"}")
    places = [written.index(f"{name}=".encode()) for name in present if name != "text"]
    assert places == sorted(places)
    if values[POSITIONS["text"]] is None:
        assert b"text=" not in written


@pytest.mark.parametrize(
    ("class_name", "kind", "form", "values"),
    [
        ("Short", "int2", ">h", st.integers(-(2**15), 2**15 - 1)),
        ("Integer", "int4", ">i", st.integers(-(2**31), 2**31 - 1)),
        ("Long", "int8", ">q", st.integers(-(2**63), 2**63 - 1)),
        ("Float", "float4", ">f", st.floats(width=32, allow_nan=False)),
        ("Double", "float8", ">d", st.floats(allow_nan=False)),
    ],
)
def test_primitives_read_back(class_name: str, kind: str, form: str, values: st.SearchStrategy[Any]) -> None:
    render = REGISTRY[f"{KAFKA}converters.{class_name}Converter"].compile(cell(kind), {kind: 0})
    assert render([None]) is None

    @given(values)
    def check(value: Any) -> None:
        text = {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, repr(value))
        assert struct.unpack(form, render([text.encode()])) == (value,)

    check()


@given(st.binary())
def test_bytes_read_back(value: bytes) -> None:
    render = REGISTRY[f"{KAFKA}converters.ByteArrayConverter"].compile(cell("bytea"), {"bytea": 0})
    assert render([b"\\x" + value.hex().encode()]) == value


@pytest.mark.parametrize(
    ("class_name", "node", "problem"),
    [
        (
            "Integer",
            cell("int8"),
            "IntegerConverter writes java.lang.Integer, not java.lang.Long under a schema of type INT64",
        ),
        ("Long", cell("timestamp"), "LongConverter writes java.lang.Long, not java.sql.Timestamp under"),
        ("ByteArray", cell("numeric"), "ByteArrayConverter writes byte[], not java.math.BigDecimal under"),
        ("Boolean", cell("text"), "BooleanConverter writes java.lang.Boolean, not java.lang.String under"),
        ("ByteArray", RECORD, "ByteArrayConverter writes byte[], not a struct; choose another converter"),
    ],
)
def test_primitives_refuse_other_classes(class_name: str, node: Any, problem: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        REGISTRY[f"{KAFKA}converters.{class_name}Converter"].compile(node, POSITIONS)
    assert str(caught.value).startswith(problem)


def test_primitive_constants_and_no_key() -> None:
    converter = REGISTRY[f"{KAFKA}converters.LongConverter"]
    seven = Constant(schema=Schema(type=Type.INT64), java=Java.LONG, value=7)
    assert converter.compile(seven, {})([]) == struct.pack(">q", 7)
    assert converter.compile(replace(seven, value=None), {})([]) is None
    assert converter.compile(None, {})([]) is None


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (
            replace(cell("text"), schema=Schema(type=Type.INT32)),
            "can't write java.lang.String under a schema of type INT32",
        ),
        (
            replace(cell("date"), schema=Schema(type=Type.INT32)),
            "can't write java.sql.Date",
        ),
        (replace(cell("int4"), schema=Schema.date()), f"can't write java.lang.Integer as {DATE}"),
        (replace(cell("text"), schema=Schema.decimal(2)), f"can't write java.lang.String as {DECIMAL}"),
        (
            Constant(schema=Schema(type=Type.STRING), java=Java.STRING, value=None),
            "can't write null under a schema that",
        ),
    ],
)
def test_json_refuses_classes_that_do_not_go_with_the_schema(node: Any, problem: str) -> None:
    with pytest.raises(ValueError, match="Connect refuses it too") as caught:
        JsonConverter(schemas_enable=False).compile(node, POSITIONS)
    assert str(caught.value).startswith(problem)


def test_a_decimal_of_another_scale_than_its_schema() -> None:
    zero = Constant(schema=Schema.decimal(2), java=Java.DECIMAL, value=Decimal(0))
    with pytest.raises(RowError, match="scale is not that of its Decimal schema"):
        JsonConverter(schemas_enable=False).compile(zero, {})
    assert JsonConverter(schemas_enable=False, numeric=True).compile(zero, {})([]) == b"0"


def test_texts_are_utf_8() -> None:
    made, problems = read_converter(f"{KAFKA}storage.StringConverter", {"encoding": "utf8"})
    assert not problems
    assert made is not None
    assert made.compile(cell("text"), {"text": 0})(["é€😀".encode()]) == "é€😀".encode()


@pytest.mark.parametrize(
    ("class_name", "options", "problem"),
    [
        ("storage.StringConverter", {"encoding": "EBCDIC"}, ".encoding: must be one of UTF-8, UTF8, "),
        ("json.JsonConverter", {"decimal.format": "TEXT"}, ".decimal.format: must be BASE64 or NUMERIC, not 'TEXT'"),
        (
            "json.JsonConverter",
            {"schemas.enabled": "x"},
            ".schemas.enabled: unknown option of JsonConverter; did you mean",
        ),
        ("converters.LongConverter", {"x": "y"}, ".x: unknown option of LongConverter"),
        (
            "json.JsonConvertor",
            {},
            f": {KAFKA}json.JsonConvertor is not a converter that Compactory knows; did you mean",
        ),
    ],
)
def test_bad_options(class_name: str, options: dict[str, str], problem: str) -> None:
    made, problems = read_converter(KAFKA + class_name, options)
    assert made is None
    assert len(problems) == 1
    assert problems[0].startswith(problem)


@pytest.mark.parametrize("class_name", sorted(REGISTRY))
def test_every_converter_takes_schemas_enable(class_name: str) -> None:
    given = {"schemas.enable": "false"}
    if class_name.startswith("io.confluent"):
        given["schema.registry.url"] = "http://registry"
    made, problems = read_converter(class_name, given)
    assert not problems
    assert made is not None


def test_protobuf_is_refused_with_a_remedy() -> None:
    _, problems = read_converter("io.confluent.connect.protobuf.ProtobufConverter", {})
    assert problems == [
        ": io.confluent.connect.protobuf.ProtobufConverter is not supported; use AvroConverter or JsonConverter"
    ]


@pytest.mark.parametrize(
    ("zone", "problem"),
    [
        ("Europe/Berlim", "must be a time zone such as Europe/Berlin or +03:00; did you mean Europe/Berlin?"),
        ("UTC+3", "must not begin with UTC or UT before an offset: Java reads such times as UTC; write +03:00"),
        ("+19:00", "must be a time zone such as"),
    ],
)
def test_zones_that_are_none(zone: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        read_zone(zone)
    assert str(caught.value).startswith(problem)


@given(
    MODERN, st.sampled_from([Granularity.MICROS_LONG, Granularity.NANOS_STRING, Granularity.MICROS_ISO_DATETIME_STRING])
)
def test_granularities_read_back(moment: datetime, granularity: Granularity) -> None:
    found = column_cell(Column(name="c", type="timestamp"), ColumnOptions(granularity=granularity))
    assert found is not None
    written = StringConverter().compile(found, {"c": 0})([timestamp_text(moment)])
    assert written is not None
    if granularity is Granularity.MICROS_ISO_DATETIME_STRING:
        assert datetime.fromisoformat(written.decode()) == moment
        return
    micros = int(written) // (1000 if granularity is Granularity.NANOS_STRING else 1)
    late = (
        timedelta(seconds=1) if moment < EPOCH and (moment - EPOCH) // timedelta(milliseconds=1) % 1000 else timedelta()
    )
    assert EPOCH + timedelta(microseconds=micros) == moment + late

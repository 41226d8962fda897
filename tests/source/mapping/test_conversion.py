"""Postgres text → key and value bytes, column by column.

The expected bytes were printed by Kafka's own JsonConverter and StringConverter (connect-json 4.1.0) for what pgjdbc
42.7 makes of the same text.
"""

from __future__ import annotations

import json
import math
import re
import struct
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.json_value import json_string
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.javatext.java_calendar import CUTOVER, civil_date, day_number
from compactory_connectors.connect.javatext.java_number import double_text, double_text_of, float_text, float_text_of
from compactory_connectors.connect.record.record import Cell, Constant, Java, RowError, Step, StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.source.mapping.column_type import column_cell, numeric_scale
from compactory_connectors.source.postgres.catalog import Column

EVERY_TYPE = (
    *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "text", "bytea"),
    *("date", "time", "timetz", "timestamp", "timestamptz"),
)
LEFT_OUT = ("_text", "inet", "interval", "int4range", "hstore", "citext", "varbit", "xid8", "point")
NUMERIC_10_2 = (10 << 16 | 2) + 4
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def cell(type_name: str, typmod: int = -1, *, not_null: bool = False) -> Cell:
    cell = column_cell(Column(name="c", type=type_name, typmod=typmod, not_null=not_null))
    assert cell is not None
    return cell


def as_json(type_name: str, raw: bytes | None, typmod: int = -1) -> bytes | None:
    return JsonConverter(schemas_enable=False).compile(cell(type_name, typmod), {"c": 0})([raw])


def as_text(type_name: str, raw: bytes | None, typmod: int = -1) -> bytes | None:
    return StringConverter().compile(cell(type_name, typmod), {"c": 0})([raw])


@pytest.mark.parametrize(
    ("type_name", "raw", "in_json", "in_text"),
    [
        ("bool", "t", "true", "true"),
        ("bool", "f", "false", "false"),
        ("int2", "-32768", "-32768", "-32768"),
        ("int8", "9223372036854775807", "9223372036854775807", "9223372036854775807"),
        ("oid", "4294967295", "4294967295", "4294967295"),
        ("float8", "1.5", "1.5", "1.5"),
        ("float8", "0", "0.0", "0.0"),
        ("float8", "-0", "-0.0", "-0.0"),
        ("float8", "10000000", "1.0E7", "1.0E7"),
        ("float8", "9999999", "9999999.0", "9999999.0"),
        ("float8", "12345678.9", "1.23456789E7", "1.23456789E7"),
        ("float8", "1e+10", "1.0E10", "1.0E10"),
        ("float8", "1e-05", "1.0E-5", "1.0E-5"),
        ("float8", "0.001", "0.001", "0.001"),
        ("float8", "0.00099", "9.9E-4", "9.9E-4"),
        ("float8", "9.999999e+22", "9.999999E22", "9.999999E22"),
        ("float8", "1e+300", "1.0E300", "1.0E300"),
        ("float8", "5e-324", "4.9E-324", "4.9E-324"),
        ("float8", "NaN", '"NaN"', "NaN"),
        ("float8", "-Infinity", '"-Infinity"', "-Infinity"),
        ("float4", "1e-45", "1.4E-45", "1.4E-45"),
        ("float4", "3.4028235e+38", "3.4028235E38", "3.4028235E38"),
        ("float4", "1e+06", "1000000.0", "1000000.0"),
        ("float4", "Infinity", '"Infinity"', "Infinity"),
        ("money", "-$1,234.50", "-1234.5", "-1234.5"),
        ("text", 'a"\\/', '"a\\"\\\\/"', 'a"\\/'),
        ("text", "\b\t\n\f\r\x01\x1f\x7f", '"\\b\\t\\n\\f\\r\\u0001\\u001F\x7f"', "\b\t\n\f\r\x01\x1f\x7f"),
        ("text", "é\u2028日", '"é\u2028日"', "é\u2028日"),
        ("text", "😀", '"\\uD83D\\uDE00"', "😀"),
        ("text", "100 % %d", '"100 % %d"', "100 % %d"),
        ("uuid", "00000000-0000-0000-0000-00000000000a", '"00000000-0000-0000-0000-00000000000a"', None),
        ("jsonb", '{"b": [1, 2]}', '"{\\"b\\": [1, 2]}"', '{"b": [1, 2]}'),
        ("bytea", "\\x00ff", '"AP8="', None),
        ("date", "2024-02-29", "19782", "2024-02-29"),
        ("date", "1969-12-31", "-1", "1969-12-31"),
        ("date", "1582-10-15", "-141427", "1582-10-15"),
        ("date", "1582-10-14", "-141418", "1582-10-24"),  # left out of Java's calendar, so read as Julian
        ("date", "1582-10-04", "-141428", "1582-10-04"),
        ("date", "0044-03-15 BC", "-735162", "0044-03-15"),
        ("time", "12:34:56.789999", "45296789", "12:34:56"),
        ("time", "24:00:00", "86400000", "00:00:00"),
        ("timetz", "12:34:56.789+03", "34496789", "09:34:56"),
        ("timestamp", "2024-01-01 11:11:11.123456", "1704107471123", "2024-01-01 11:11:11.123456"),
        ("timestamp", "2024-01-01 11:11:11", "1704107471000", "2024-01-01 11:11:11.0"),
        ("timestamp", "1969-12-31 23:59:59.999", "-1", "1969-12-31 23:59:59.999"),
        ("timestamp", "1969-12-31 23:59:59.000001", "-1000", "1969-12-31 23:59:59.000001"),
        ("timestamp", "1969-12-31 23:59:59.9999", "-1", "1969-12-31 23:59:59.9999"),
        ("timestamp", "4713-01-01 00:00:00 BC", "-210866803200000", "4713-01-01 00:00:00.0"),
        ("timestamp", "10000-01-01 00:00:00", "253402300800000", "10000-01-01 00:00:00.0"),
        ("timestamp", "infinity", "9223372036825200000", "292278994-08-16 23:00:00.0"),
        ("timestamp", "-infinity", "-9223372036832400000", None),
        ("timestamptz", "2024-01-01 08:11:11.123456+00", "1704096671123", "2024-01-01 08:11:11.123456"),
    ],
)
def test_reference_values(type_name: str, raw: str, in_json: str, in_text: str | None) -> None:
    assert as_json(type_name, raw.encode()) == in_json.encode()
    if in_text is not None:
        assert as_text(type_name, raw.encode()) == in_text.encode()


@pytest.mark.parametrize(
    ("typmod", "raw", "in_json", "in_text"),
    [
        (NUMERIC_10_2, "12345.67", "EtaH", "12345.67"),
        (NUMERIC_10_2, "-0.01", "/w==", "-0.01"),
        (NUMERIC_10_2, "0.00", "AA==", "0.00"),
        (NUMERIC_10_2, "1.27", "fw==", "1.27"),
        (NUMERIC_10_2, "1.28", "AIA=", "1.28"),
        (NUMERIC_10_2, "-1.28", "gA==", "-1.28"),
        (NUMERIC_10_2, "-1.29", "/38=", "-1.29"),
        (NUMERIC_10_2, "2.56", "AQA=", "2.56"),
        (-1, "0", "AA==", "0E-127"),
        (-1, "3.14159", "ALmj0AilPz5MKYee2FRHnBNunzVnhcW5obxMNsErgn/rlrDHz3ncAAAAAAAAAAAAAAAAAAAA", None),
    ],
)
def test_decimals(typmod: int, raw: str, in_json: str, in_text: str | None) -> None:
    assert as_json("numeric", raw.encode(), typmod) == f'"{in_json}"'.encode()
    if in_text is not None:
        assert as_text("numeric", raw.encode(), typmod) == in_text.encode()


@pytest.mark.parametrize(
    ("typmod", "raw", "in_json"),
    [
        (1, b"1", b"true"),
        (1, b"0", b"false"),
        (3, b"101", b"101"),
        (8, b"01111111", None),
        (9, b"000000001", b'"MDAwMDAwMDAx"'),
    ],
)
def test_bits(typmod: int, raw: bytes, in_json: bytes | None) -> None:
    if in_json is None:
        with pytest.raises(RowError, match="don't fit into a byte"):
            as_json("bit", raw, typmod)
    else:
        assert as_json("bit", raw, typmod) == in_json


def test_null_in_every_type() -> None:
    for name in EVERY_TYPE:
        assert as_json(name, None) == b"null"
        if name != "bytea":
            assert as_text(name, None) is None


@pytest.mark.parametrize(
    ("type_name", "raw", "message"),
    [
        ("numeric", b"NaN", "NaN and Infinity are not values of BigDecimal"),
        ("numeric", b"-Infinity", "NaN and Infinity are not values of BigDecimal"),
        ("date", b"infinity", "Connect's Date takes whole days only"),
        ("timetz", b"01:00:00+03", "Connect's Time takes times of one day only; in UTC this one falls on another"),
        ("timestamp", b"01/02/2024", "not a timestamp in ISO format"),
        ("date", b"01/02/2024", "not a date in ISO format"),
        ("time", b"1 pm", "not a time in ISO format"),
        ("timetz", b"1 pm", "not a time with a time zone in ISO format"),
    ],
)
def test_values_that_the_real_task_would_fail_on(type_name: str, raw: bytes, message: str) -> None:
    with pytest.raises(RowError) as caught:
        as_json(type_name, raw)
    assert str(caught.value) in {message, f"column c: {message}"}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_types_that_are_left_out(name: str) -> None:
    assert column_cell(Column(name="c", type=name, type_schema="pg_catalog")) is None


def test_types_of_other_schemas() -> None:
    assert column_cell(Column(name="c", type="int4", type_schema="mine")) is None
    mood = column_cell(Column(name="c", type="mood", type_schema="mine", type_kind="e"))
    assert mood is not None
    assert mood.schema == Schema(type=Type.STRING, optional=True)


def test_nullability_and_decimal_parameters() -> None:
    assert cell("int4", not_null=True).schema == Schema(type=Type.INT32)
    assert numeric_scale(-1) == (127, 0)
    assert cell("numeric", NUMERIC_10_2).schema.parameters == (("scale", "2"), ("connect.decimal.precision", "10"))


def test_schemas_are_written_as_the_real_converter_does() -> None:
    fields = ("id", cell("int8", not_null=True)), ("n", cell("numeric", NUMERIC_10_2)), ("t", cell("timestamp"))
    schema = Schema(type=Type.STRUCT, name="t", fields=tuple(Field(name, node.schema) for name, node in fields))
    node = StructNode(schema, tuple(node for _, node in fields))
    render = JsonConverter(schemas_enable=True).compile(node, {"c": 0})
    assert render([None]) == (
        b'{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"},'
        b'{"type":"bytes","optional":true,"name":"org.apache.kafka.connect.data.Decimal","version":1,'
        b'"parameters":{"scale":"2","connect.decimal.precision":"10"},"field":"n"},'
        b'{"type":"int64","optional":true,"name":"org.apache.kafka.connect.data.Timestamp","version":1,"field":"t"}],'
        b'"optional":false,"name":"t"},"payload":{"id":null,"n":null,"t":null}}'
    )


def test_structs_as_text() -> None:
    schema = Schema(type=Type.STRUCT, fields=(Field("a", cell("text").schema), Field("b", cell("text").schema)))
    inner = StructNode(schema, (cell("text"), Constant(schema=cell("text").schema, java=Java.STRING, value=None)))
    outer = StructNode(
        Schema(type=Type.STRUCT, fields=(Field("s", schema), Field("c", cell("text").schema))), (inner, cell("text"))
    )
    render = StringConverter().compile(outer, {"c": 0})
    assert render([b"x"]) == b"Struct{s=Struct{a=x},c=x}"
    assert render([None]) == b"Struct{s=Struct{}}"


def test_bytes_have_no_text() -> None:
    with pytest.raises(ValueError, match=r"^StringConverter can't write bytes"):
        StringConverter().compile(cell("bytea"), {"c": 0})


def test_constants_are_part_of_the_template() -> None:
    constant = Constant(schema=Schema(type=Type.STRING), java=Java.STRING, value="5 %")
    assert JsonConverter(schemas_enable=False).compile(constant, {})([]) == b'"5 %"'
    assert StringConverter().compile(constant, {})([]) == b"5 %"


def generally(type_name: str, raw: bytes, typmod: int = -1) -> tuple[bytes | None, bytes | None]:
    """By way of the Connect value, which a step that changes nothing forces."""
    plain = cell(type_name, typmod)
    slow = replace(plain, steps=(Step(lambda value: value),))
    return (
        JsonConverter(schemas_enable=False).compile(slow, {"c": 0})([raw]),
        StringConverter().compile(slow, {"c": 0})([raw]),
    )


def digits(text: str) -> str:
    """The significant digits of a number."""
    return re.split("[eE]", text)[0].replace(".", "").strip("-0")


def postgres_float(value: float, text: str) -> bytes:
    """``text``, Python's repr, in the manner of Postgres."""
    if math.isnan(value) or math.isinf(value):
        return {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}[text]
    return text.removesuffix(".0").encode()


@given(st.floats())
def test_doubles_read_back_the_same(value: float) -> None:
    raw = postgres_float(value, repr(value))
    text = double_text(raw)
    assert struct.pack("d", float(text)) == struct.pack("d", value) or math.isnan(value)
    assert double_text_of(value) == text
    assert generally("float8", raw) == (as_json("float8", raw), text)
    if math.isfinite(value) and value:
        plain = 1e-3 <= abs(value) < 1e7
        assert (b"E" in text) != plain
        assert len(text.split(b"E")[0].replace(b".", b"").strip(b"-0")) <= max(
            2, len(repr(value).split("e")[0].replace(".", "").strip("-0"))
        )


@given(st.floats(width=32))
def test_floats_read_back_the_same(value: float) -> None:
    text = float_text_of(value)
    if math.isnan(value):
        assert text == b"NaN"
        return
    assert struct.pack("f", float(text)) == struct.pack("f", value)
    candidates = (f"{value:.{count}g}" for count in range(1, 10))
    equal_texts = (text for text in candidates if struct.pack("f", float(text)) == struct.pack("f", value))
    shortest = next(equal_texts, repr(value))
    raw = postgres_float(value, shortest)
    assert float_text(raw) == text
    assert generally("float4", raw) == (as_json("float4", raw), text)


@given(TEXT)
def test_text_is_escaped_as_json_and_reads_back(text: str) -> None:
    written = as_json("text", text.encode())
    assert written is not None
    assert json.loads(written) == text
    assert written == json_string(text) == generally("text", text.encode())[0]
    assert not any(byte < 0x20 or byte >= 0xF0 for byte in written)
    assert as_text("text", text.encode()) == text.encode()


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers(value: int) -> None:
    raw = str(value).encode()
    assert as_json("int8", raw) == as_text("int8", raw) == raw
    assert generally("int8", raw) == (raw, raw)


@given(st.integers(-(10**60), 10**60), st.sampled_from([0, 2, 5, -1]), st.integers(0, 3))
def test_decimals_read_back_the_same(unscaled: int, scale: int, zeros: int) -> None:
    typmod = -1 if scale == -1 else (100 << 16 | scale) + 4
    digits = 127 if scale == -1 else scale
    value = Decimal(unscaled).scaleb(-digits, Context(prec=400))
    for text in (f"{value:f}", f"{value:f}{'0' * zeros}" if digits else f"{value:f}.{'0' * zeros}".rstrip(".")):
        written = as_json("numeric", text.encode(), typmod)
        assert written is not None
        read = b64decode(written[1:-1])
        assert int.from_bytes(read, "big", signed=True) == unscaled
        bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
        assert len(read) == bits // 8 + 1
        assert as_text("numeric", text.encode(), typmod) == str(value).encode()


def test_a_decimal_is_never_rounded() -> None:
    with pytest.raises(RowError, match="more than 127 digits after the point"):
        as_json("numeric", b"0." + b"0" * 127 + b"1")


def test_a_decimal_with_as_many_digits_as_postgres_takes() -> None:
    raw = b"9" * 131_072 + b"." + b"9" * 100
    written = as_json("numeric", raw)
    assert written is not None
    assert len(written) > 70_000


@given(st.binary())
def test_bytes_are_base64(value: bytes) -> None:
    written = as_json("bytea", b"\\x" + value.hex().encode())
    assert written is not None
    assert b64decode(written[1:-1]) == value


def postgres_timestamp(moment: datetime) -> str:
    text = moment.strftime("%H:%M:%S") + (f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else "")
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d} {text}"


MODERN = st.datetimes(datetime(1582, 10, 15), datetime(9999, 12, 31))  # noqa: DTZ001


@given(MODERN)
def test_timestamps_are_cut_to_milliseconds_downwards(moment: datetime) -> None:
    text = postgres_timestamp(moment)
    millis = (moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1)  # noqa: DTZ001
    for type_name, raw in (("timestamp", text.encode()), ("timestamptz", text.encode() + b"+00")):
        assert as_json(type_name, raw) == str(millis).encode()
        assert generally(type_name, raw) == (as_json(type_name, raw), as_text(type_name, raw))


@given(st.dates(date(1582, 10, 15)))
def test_dates_are_days(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    assert as_json("date", day.isoformat().encode()) == str(days).encode()
    assert as_text("date", day.isoformat().encode()) == day.isoformat().encode()
    assert civil_date(days) == (day.year, day.month, day.day)


@given(st.integers(-3_000_000, 3_000_000))
def test_the_calendar_goes_back_and_forth(days: int) -> None:
    year, month, day = civil_date(days)
    assert day_number(year, month, day) == days
    assert civil_date(days + 1) == (year, month, day + 1) or day >= 28 or days + 1 == CUTOVER


def test_the_calendar_skips_ten_days_in_1582() -> None:
    assert civil_date(CUTOVER) == (1582, 10, 15)
    assert civil_date(CUTOVER - 1) == (1582, 10, 4)
    assert day_number(1500, 2, 29) + 1 == day_number(1500, 3, 1)
    assert datetime.fromtimestamp(0, UTC).toordinal() + CUTOVER == date(1582, 10, 15).toordinal()


@given(st.times())
def test_times_are_milliseconds(time: object) -> None:
    from datetime import time as clock

    assert isinstance(time, clock)
    raw = f"{time:%H:%M:%S}".encode() + (f".{time.microsecond:06d}".rstrip("0").encode() if time.microsecond else b"")
    millis = ((time.hour * 60 + time.minute) * 60 + time.second) * 1000 + time.microsecond // 1000
    assert as_json("time", raw) == str(millis).encode()
    assert generally("time", raw) == (as_json("time", raw), as_text("time", raw))

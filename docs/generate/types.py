"""Column types: schema and bytes of an example each, made by the code that the source runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from compactory_connectors.connect.converters.avro_schema import AvroNames, avro_schema
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.record.record import Cell, Java
from compactory_connectors.connect.record.schema import Schema
from compactory_connectors.source.config.connector import ColumnOptions, ColumnTypes, Granularity
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column

from .markdown import cell, code, page, table

__all__ = ["page_text"]

_INTRO = """\
The schema that a column gets in Kafka Connect's data model, and the bytes that the converters write. Every column is
optional unless it is NOT NULL. Columns keep the table's order, and no schema has a default. A domain counts as its
base type, `serial` as its integer, an enum as text. The JDBC source connector 10.9.7 on Kafka Connect 4.3 writes the
same. `tests/golden/columns` holds its output for these types and many awkward values, under every option below."""

_TYPMOD = {"numeric(10,2)": (10 << 16 | 2) + 4, "numeric(5)": (5 << 16) + 4, "bit(3)": 3, "bit(9)": 9}

_SUPPORTED = (
    ("smallint", "int2", "7"),
    ("integer", "int4", "7"),
    ("bigint", "int8", "7"),
    ("oid", "oid", "7"),
    ("real", "float4", "1.5"),
    ("double precision", "float8", "10000000"),
    ("numeric(10,2)", "numeric", "12.50"),
    ("numeric(5)", "numeric", "12"),
    ("numeric", "numeric", "0"),
    ("money", "money", "$12.50"),
    ("boolean", "bool", "t"),
    ("bit", "bit", "1"),
    ("bit(3)", "bit", "101"),
    ("bit(9)", "bit", "000000101"),
    ("char, varchar, text, name", "text", 'a "b"'),
    ("an enum", "text", "sad"),
    ("uuid", "uuid", "00000000-0000-0000-0000-00000000000a"),
    ("json, jsonb", "jsonb", '{"a": 1}'),
    ("xml", "xml", "<a/>"),
    ("bytea", "bytea", "\\x00ff"),
    ("date", "date", "2024-02-29"),
    ("time", "time", "12:34:56.789012"),
    ("timetz", "timetz", "12:34:56.789+03"),
    ("timestamp", "timestamp", "2024-01-01 11:11:11.123456"),
    ("timestamptz", "timestamptz", "2024-01-01 11:11:11.123456+00"),
)

_FACTS = """\
- Connect's `Timestamp` and `Time` hold milliseconds; the rest is cut off downwards. `StringConverter` writes
  microseconds.
- `numeric` without precision has scale 127 and precision 0. A value with more digits than the scale fails its row,
  and so do `NaN` and `Infinity`, as in the connector. A negative scale wraps to 11 bits: `numeric(3,-2)` has scale
  2046.
- `decimal.format=NUMERIC` writes a number: `12.50`, and for a bare `numeric` `0E-127`.
- `real` and `double precision` are written with the shortest digits that read back the same, as in Java 19 and later.
  Java 17 adds a digit to some numbers (`2.0E23` is `1.9999999999999998E23` there). In JSON, `NaN` and the infinities
  are texts.
- Days before 1582-10-15 are Julian, as in the calendar of `java.util`, with a gap of ten days.
- A timestamp of `infinity` is 9223372036825200000, `-infinity` is -9223372036832400000. An infinite date fails in
  JSON.
- A `timetz` that falls on another day in UTC fails in JSON and Avro. `24:00:00` is 86400000.
- JSON is as Jackson writes it: `/` and U+2028 are not escaped, control characters are `\\u001F` in upper case,
  characters beyond the Basic Multilingual Plane are two escapes.
- `bit(2)` to `bit(8)` become the decimal number with the same digits, an error above 127. `bit(9)` and longer become
  the text of the digits."""

_DIFFERENCES = (
    ["`money` with a thousands' comma", "fails", "is read"],
    [
        "sixth poll of a connection, and later",
        "pgjdbc changes to binary transfer: bare `numeric` fails under JsonConverter, a `time` of `24:00:00` becomes 0",
        "all polls are like the first five",
    ],
    ["bytes under StringConverter", "the address of a Java array, different each time", "refused"],
    ["null under a primitive converter of another class", "null", "the connector is refused"],
    [
        "`db.timezone` EST, HST, MST",
        "since JDK 23 Panama, Honolulu, Phoenix, with their history",
        "fixed offsets, as before JDK 23",
    ],
    [
        "`db.timezone` of a zone that tzdata merged (Africa/Bamako), before 1970",
        "the history of the other zone, from the JDK's tzdata",
        "the history in the system's tzdata",
    ],
    ["`db.timezone=Africa/Windhoek`, after 2037", "the standard offset before 2017", "the present offset"],
    ["`db.timezone=UTC+3`", "read as UTC, shown as +03:00", "refused; write `+03:00`"],
    ["a transform fails on a field that a later one drops", "the row fails", "the field is never converted"],
    [
        "text of a JSON Schema",
        "in the order of hash tables, different in each JVM",
        "in the table's order; use `normalize.schemas=true`",
    ],
    ["`use.latest.version`", "writes with the latest schema", "refused unless the latest schema writes the same bytes"],
    ["`discard.type.doc.default`, ProtobufConverter", "supported", "refused"],
)

_OTHERS = (
    ("integer[], text[] …", Column(name="c", type="_int4", has_parts=True), "[1, null]"),
    ("hstore", Column(name="c", type="hstore", type_schema="public", has_parts=True), '{"a": "1", "b": null}'),
    (
        "a composite",
        Column(name="c", type="address", type_schema="public", type_kind="c", has_parts=True),
        '{"street": "High St", "number": 7}',
    ),
    ("citext", Column(name="c", type="citext", type_schema="public"), "aB"),
    ("interval", Column(name="c", type="interval"), "1 mon 03:04:05"),
    ("inet, cidr, macaddr", Column(name="c", type="inet"), "10.0.0.1/8"),
    ("ranges, multiranges", Column(name="c", type="int4range", type_kind="r"), "[1,6)"),
    ("varbit", Column(name="c", type="varbit"), "0101"),
    ("point and other shapes, tsvector, xid8 …", Column(name="c", type="point"), "(1,2)"),
)

_ALL = """\
The real connector skips columns of other types with a warning, and so does this one. `compactory.types=all` keeps
them. An array, a composite or an `hstore` is the JSON that Postgres makes of it with `to_jsonb(column)`: numbers are
numbers, times are ISO texts, and `bytea` is a text such as `\\x00ff`. JsonConverter without schemas writes it as a
part of the record, with the blanks that Postgres puts after commas and colons. A Python function of
`compactory.transform` gets lists and dictionaries. Every other converter writes it as a text that holds JSON, and every
transform sees this text. Any other type becomes the text that Postgres writes. A poll fails at a value that `jsonb`
can't hold, such as `\\u0000` in a `json[]`: leave such a column out with ReplaceField."""

_NUMBERS = """\
`numeric.mapping` turns NUMERIC columns into numbers; `numeric.precision.mapping=true` means `precision_only`. All
other NUMERIC columns stay Decimal. Digits are those of the declared precision."""

_NUMBER_ROWS = (
    ["`none`", "every NUMERIC is Decimal"],
    ["`precision_only`", "without a fraction: up to 2 digits int8, 4 int16, 9 int32, 18 int64"],
    ["`best_fit`", "the same, and with a fraction up to 18 digits float64"],
    ["`best_fit_eager_double`", "the same, and with a fraction of any number of digits float64"],
)

_BARE = """\
Take care with a bare `numeric`. pgjdbc reports precision 0 and scale 0, so every mapping but `none` makes it an int8,
cuts off the fraction and fails above 127. A warning at the start says so; declare a precision."""

_ZONES = """\
`db.timezone` names the zone of `timestamp` and `time` columns. It does not matter for `date`, `timestamptz` and
`timetz`, except in ISO texts, which are written in this zone. A time that daylight saving skips is read with the
offset before the change; a time that comes twice is the later one. In a zone that ever changed its offset, a time
before 1900 or after 9999 fails its row; UTC and offsets such as `+03:00` have no such limit. The table shows
`timestamp.granularity` for `2024-01-01 11:11:11.123456` and for half a second before 1970, `1969-12-31 23:59:59.5`,
in UTC:"""


def page_text() -> str:
    """The page."""
    head = ["column", "schema", "value in Postgres", "JsonConverter", "StringConverter", "Avro"]
    parts = [
        _INTRO,
        "## Types",
        table(head, _supported()),
        _FACTS,
        "## Other types",
        _ALL,
        table(head, _others()),
        "## Numbers",
        _NUMBERS,
        table(["`numeric.mapping`", "what becomes of NUMERIC"], _NUMBER_ROWS),
        _BARE,
        "## Times",
        _ZONES,
        table(["`timestamp.granularity`", "schema", "JSON", "JSON"], _granularities()),
        "## Known differences",
        table(["", "the real connector", "here"], _DIFFERENCES),
    ]
    return page("Types", "`connectors/compactory_connectors/source/mapping/column_type.py`", *parts)


def _supported() -> Iterator[list[str]]:
    for name, kind, raw in _SUPPORTED:
        column = Column(name="c", type=kind, typmod=_TYPMOD.get(name, -1))
        yield _row(name, column, ColumnOptions(), raw)


def _others() -> Iterator[list[str]]:
    options = ColumnOptions(types=ColumnTypes.ALL)
    for name, column, raw in _OTHERS:
        yield _row(name, column, options, raw)


def _row(name: str, column: Column, options: ColumnOptions, raw: str) -> list[str]:
    node = column_cell(column, options)
    assert node is not None
    avro = json.dumps(json.loads(avro_schema(node.schema.as_optional(False), AvroNames(meta=False))))
    schema = (
        f"{node.schema.type.name.lower()}: {_described(node.schema)}" if node.schema.name else _described(node.schema)
    )
    return [cell(name), code(schema), code(raw), *_written(node, raw), code(avro)]


def _described(schema: Schema) -> str:
    """The schema in few words."""
    if schema.name is None:
        return schema.type.name.lower()
    return " ".join([schema.name.rsplit(".", 1)[1], *(f"{name}={value}" for name, value in schema.parameters)])


def _written(node: Cell, raw: str) -> Iterable[str]:
    row = [raw.encode()]
    yield code(_text(JsonConverter(schemas_enable=False).compile(node, {"c": 0})(row)))
    if node.java is not Java.BYTES:
        yield code(_text(StringConverter().compile(node, {"c": 0})(row)))
    else:
        yield "refused"


def _text(written: bytes | None) -> str:
    return "" if written is None else written.decode()


def _granularities() -> Iterator[list[str]]:
    column = Column(name="c", type="timestamp")
    for granularity in Granularity:
        node = column_cell(column, ColumnOptions(granularity=granularity))
        assert node is not None
        write = JsonConverter(schemas_enable=False).compile(node, {"c": 0})
        values = (write([raw]) for raw in (b"2024-01-01 11:11:11.123456", b"1969-12-31 23:59:59.5"))
        yield [code(granularity.value), code(_described(node.schema)), *(code(_text(value)) for value in values)]

"""Transforms by themselves: what they do to a record's shape and values, and how they complain."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.javatext.date_format import DateFormat
from compactory_connectors.connect.record.record import Cell, Node, Record, RowError, StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.connect.transforms import TransformError, read_transforms
from compactory_connectors.connect.transforms.change_case import CaseFormat, change_case
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column

GREGORIAN = datetime.fromisoformat("1582-10-15")
EPOCH = datetime.fromisoformat("1970-01-01")
LAST = datetime.fromisoformat("9999-12-30")
KAFKA = "org.apache.kafka.connect.transforms."
CHANGE_CASE = "com.github.jcustenborder.kafka.connect.transform.common.ChangeCase"
CONVERTER = f"{KAFKA}TimestampConverter$Value"


def cell(name: str, type_name: str) -> Cell:
    found = column_cell(Column(name=name, type=type_name))
    assert found is not None
    return found


def row(**columns: str) -> Record:
    """A record of a table with these columns and types."""
    cells = [cell(name, type_name) for name, type_name in columns.items()]
    fields = tuple(Field(node.column, node.schema) for node in cells)
    return Record(
        topic="t", key=None, value=StructNode(Schema(type=Type.STRUCT, name="t", fields=fields), tuple(cells))
    )


def applied(record: Record, class_name: str, **options: str) -> Record:
    """``record`` after one transform; underscores in the names of options stand for dots."""
    settings = {f"x.{name.replace('_', '.').rstrip('.')}": value for name, value in options.items()}
    (spec,), problems = read_transforms(["x"], {"x.type": class_name, **settings})
    assert problems == []
    return spec.transform.apply(record)


def problems_of(class_name: str, settings: Mapping[str, str]) -> list[str]:
    specs, problems = read_transforms(["x"], {"x.type": class_name, **{f"x.{k}": v for k, v in settings.items()}})
    assert specs == ()
    return problems


def in_json(node: Node | None, **raw: str | None) -> str | None:
    columns = list(raw)
    render = JsonConverter(schemas_enable=False).compile(node, {name: index for index, name in enumerate(columns)})
    written = render([None if value is None else value.encode() for value in raw.values()])
    return None if written is None else written.decode()


# --- ChangeCase -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "name", "expected"),
    [
        # printed by com.google.common.base.CaseFormat of Guava 33.4
        ("LOWER_UNDERSCORE", "LOWER_CAMEL", "updated_date", "updatedDate"),
        ("LOWER_UNDERSCORE", "LOWER_CAMEL", "c_num10_2", "cNum102"),
        ("LOWER_UNDERSCORE", "LOWER_CAMEL", "_foo", "Foo"),
        ("LOWER_UNDERSCORE", "LOWER_CAMEL", "foo_", "foo"),
        ("LOWER_UNDERSCORE", "LOWER_CAMEL", "a__b", "aB"),
        ("LOWER_UNDERSCORE", "LOWER_CAMEL", "FOO_BAR", "fooBar"),
        ("LOWER_UNDERSCORE", "UPPER_CAMEL", "foo_bar", "FooBar"),
        ("LOWER_UNDERSCORE", "UPPER_UNDERSCORE", "foo_bar", "FOO_BAR"),
        ("LOWER_UNDERSCORE", "LOWER_HYPHEN", "Foo_bar", "Foo-bar"),
        ("UPPER_CAMEL", "LOWER_UNDERSCORE", "FooBar", "foo_bar"),
        ("UPPER_CAMEL", "LOWER_UNDERSCORE", "FOO_BAR", "f_o_o__b_a_r"),
        ("UPPER_CAMEL", "LOWER_UNDERSCORE", "ID", "i_d"),
        ("UPPER_CAMEL", "LOWER_CAMEL", "FooBar", "fooBar"),
        ("LOWER_CAMEL", "UPPER_UNDERSCORE", "fooBAR", "FOO_B_A_R"),
        ("LOWER_HYPHEN", "UPPER_UNDERSCORE", "foo-bar", "FOO_BAR"),
        ("UPPER_UNDERSCORE", "LOWER_HYPHEN", "FOO_BAR", "foo-bar"),
        ("LOWER_CAMEL", "LOWER_CAMEL", "Foo_Bar", "Foo_Bar"),
        ("LOWER_UNDERSCORE", "UPPER_UNDERSCORE", "É_é", "É_é"),
    ],
)
def test_case_formats_of_guava(source: str, target: str, name: str, expected: str) -> None:
    assert change_case(name, CaseFormat[source], CaseFormat[target]) == expected


@given(st.lists(st.from_regex(r"[a-z][a-z0-9]*", fullmatch=True), min_size=1), st.sampled_from(CaseFormat))
def test_case_formats_go_back_and_forth(words: list[str], target: CaseFormat) -> None:
    name = "_".join(words)
    assert (
        change_case(change_case(name, CaseFormat.LOWER_UNDERSCORE, target), target, CaseFormat.LOWER_UNDERSCORE) == name
    )


def test_change_case_renames_and_nothing_else() -> None:
    record = row(terminal_id="text", id="int8")
    changed = applied(record, f"{CHANGE_CASE}$Value", from_="LOWER_UNDERSCORE", to="LOWER_CAMEL")
    assert isinstance(changed.value, StructNode)
    assert [item.name for item in changed.value.schema.fields] == ["terminalId", "id"]
    assert changed.value.schema.name == "t"
    assert changed.value.members == record.value.members  # type: ignore[union-attr]
    assert applied(record, f"{CHANGE_CASE}$Key", from_="LOWER_UNDERSCORE", to="LOWER_CAMEL") == record


def test_change_case_refuses_two_fields_of_one_name() -> None:
    with pytest.raises(TransformError, match=r"^a_b and a__b both become aB$"):
        applied(row(a_b="text", a__b="text"), f"{CHANGE_CASE}$Value", from_="LOWER_UNDERSCORE", to="LOWER_CAMEL")


# --- ValueToKey, ExtractField -----------------------------------------------------------------------------------------


def test_value_to_key_and_extract_field() -> None:
    record = applied(row(id="int8", name="text"), f"{KAFKA}ValueToKey", fields="name, id")
    assert in_json(record.key, id="1", name="x") == '{"name":"x","id":1}'
    record = applied(record, f"{KAFKA}ExtractField$Key", field="id")
    assert in_json(record.key, id="1", name="x") == "1"
    assert in_json(applied(record, f"{KAFKA}ExtractField$Value", field="name").value, id="1", name=None) == "null"


def test_a_missing_key_stays_missing() -> None:
    record = row(id="int8")
    assert applied(record, f"{KAFKA}ExtractField$Key", field="id") is record
    assert applied(record, f"{KAFKA}TimestampConverter$Key", target_type="unix") is record


@pytest.mark.parametrize(
    ("class_name", "options", "message"),
    [
        ("ValueToKey", {"fields": "idd"}, "the value has no field idd; did you mean id? (it has id, name)"),
        ("ExtractField$Value", {"field": "zzz"}, "the value has no field zzz (it has id, name)"),
        ("TimestampConverter$Value", {"field": "id.x"}, None),
        (
            "TimestampConverter$Value",
            {"field": "name"},
            "name is text, which needs format, a SimpleDateFormat pattern",
        ),
        ("TimestampConverter$Value", {"field": "ok"}, "ok is of type boolean, which is not a time"),
        ("TimestampConverter$Value", {}, "value is a struct, not a time"),
    ],
)
def test_transforms_that_do_not_fit(class_name: str, options: dict[str, str], message: str | None) -> None:
    record = row(id="int8", name="text") if "Timestamp" not in class_name else row(name="text", ok="bool")
    if "Timestamp" in class_name:
        options = options | {"target_type": "unix"}
    if message is None:
        changed = applied(record, KAFKA + class_name, **options)
        assert changed.value == record.value
        assert changed.warnings == ("TimestampConverter changes nothing: the value has no field id.x",)
        return
    with pytest.raises(TransformError) as caught:
        applied(record, KAFKA + class_name, **options)
    assert str(caught.value) == message


def test_a_value_that_is_no_struct_has_no_fields() -> None:
    record = applied(row(id="int8"), f"{KAFKA}ExtractField$Value", field="id")
    for name, options in (("ValueToKey", {"fields": "id"}), ("ExtractField$Value", {"field": "id"})):
        with pytest.raises(TransformError, match="the value is not a struct"):
            applied(record, KAFKA + name, **options)


# --- TimestampConverter -----------------------------------------------------------------------------------------------


def text(pattern: str) -> dict[str, str]:
    return {"target_type": "string", "format": pattern}


def extracted(type_name: str) -> Record:
    """A record whose whole value is one column, ``at``."""
    return applied(row(at=type_name), f"{KAFKA}ExtractField$Value", field="at")


TIME = "2024-01-01 11:11:11.123456"


@pytest.mark.parametrize(
    ("type_name", "raw", "options", "expected"),
    [
        ("timestamp", TIME, text("yyyy-MM-dd HH:mm:ss.SSS"), '"2024-01-01 11:11:11.123"'),
        ("timestamp", TIME[:-6], text("ss.SSS"), '"11.000"'),
        ("timestamp", "2024-01-01 11:11:11", text("yyyyMMddSSS"), '"20240101000"'),
        ("timestamptz", TIME + "+00", text("dd.MM.yyyy HH"), '"01.01.2024 11"'),
        ("timestamp", "0044-03-15 12:00:00 BC", text("yyyy-MM-dd"), '"0044-03-15"'),
        ("timestamp", "infinity", text("yyyy-MM-dd"), '"292278994-08-16"'),
        ("timestamp", TIME, {"target_type": "unix"}, "1704107471123"),
        ("timestamp", TIME, {"target_type": "unix", "unix_precision": "seconds"}, "1704107471"),
        ("timestamp", "1969-12-31 23:59:58.5", {"target_type": "unix", "unix_precision": "seconds"}, "-1"),
        ("timestamp", TIME, {"target_type": "unix", "unix_precision": "microseconds"}, "1704107471123000"),
        ("timestamp", TIME, {"target_type": "Date"}, "19723"),
        ("timestamp", "1969-12-31 23:59:59", {"target_type": "Date"}, "-1"),
        ("timestamp", TIME, {"target_type": "Time"}, "40271123"),
        ("timestamp", "1969-12-31 23:59:59", {"target_type": "Time"}, "86399000"),
        ("timestamp", TIME, {"target_type": "Timestamp"}, "1704107471123"),
        ("date", "2024-02-29", text("d.M.yyyy"), '"29.2.2024"'),
        ("time", "11:11:11.5", text("H:mm"), '"11:11"'),
        ("int8", "1704107471", {"target_type": "Timestamp", "unix_precision": "seconds"}, "1704107471000"),
        ("int8", "-1", {"target_type": "Timestamp", "unix_precision": "microseconds"}, "0"),
        ("text", "2024-02-29", {"target_type": "Date", "format": "yyyy-MM-dd"}, "19782"),
        ("timestamp", None, text("yyyy"), "null"),
    ],
)  # fmt: skip
def test_timestamp_converter(type_name: str, raw: str | None, options: dict[str, str], expected: str) -> None:
    record = applied(row(at=type_name, z="int4"), CONVERTER, field="at", **options)
    assert in_json(record.value, at=raw, z="1") == f'{{"at":{expected},"z":1}}'


def test_the_whole_value_is_converted_without_a_field() -> None:
    record = applied(
        applied(row(at="timestamp"), f"{KAFKA}ExtractField$Value", field="at"), CONVERTER, target_type="unix"
    )
    assert in_json(record.value, at=TIME) == "1704107471123"


def test_the_target_timestamp_keeps_the_object_with_its_microseconds() -> None:
    record = applied(
        applied(row(at="timestamp"), f"{KAFKA}ExtractField$Value", field="at"), CONVERTER, target_type="Timestamp"
    )
    assert StringConverter().compile(record.value, {"at": 0})([TIME.encode()]) == TIME.encode()
    record = applied(record, CONVERTER, target_type="Date")
    assert StringConverter().compile(record.value, {"at": 0})([TIME.encode()]) == b"Mon Jan 01 00:00:00 UTC 2024"


def test_text_that_does_not_match_is_a_row_error_without_the_text() -> None:
    record = applied(row(at="text"), CONVERTER, field="at", target_type="unix", format="yyyy-MM-dd")
    with pytest.raises(RowError) as caught:
        in_json(record.value, at="secret")
    assert str(caught.value) == "column at: TimestampConverter: the text does not match the pattern 'yyyy-MM-dd'"


FIELDS = "is not supported, only yyyy MM dd HH mm ss SSS, X to XXX and Z"


@pytest.mark.parametrize(
    ("class_name", "settings", "expected"),
    [
        (CONVERTER, {}, [
            "transforms.x.target.type: missing; type of the result: string, unix, Date, Time or Timestamp"
        ]),
        (CONVERTER, {"target.type": "string"}, [
            "transforms.x: target.type string needs format, a SimpleDateFormat pattern"
        ]),
        (
            CONVERTER,
            {"target.type": "string", "format": "yyyy-QQ"},
            [f"transforms.x.format: must be a pattern of SimpleDateFormat, not 'yyyy-QQ': QQ {FIELDS}"],
        ),
        (CONVERTER, {"target.type": "string", "format": "'x"}, [
            "transforms.x.format: must be a pattern of SimpleDateFormat, not \"'x\": a quote is not closed"
        ]),
        (
            CONVERTER,
            {"target.type": "string", "format": "XXXX"},
            [f"transforms.x.format: must be a pattern of SimpleDateFormat, not 'XXXX': XXXX {FIELDS}"],
        ),
        (CONVERTER, {"target.type": "date"}, [
            "transforms.x.target.type: must be one of string, unix, Date, Time, Timestamp, not 'date'"
        ]),
        (f"{CHANGE_CASE}$Value", {"from": "LOWER", "to": "LOWER_CAMEL"}, [
            ("transforms.x.from: must be one of LOWER_HYPHEN, LOWER_UNDERSCORE, LOWER_CAMEL, UPPER_CAMEL, "
            "UPPER_UNDERSCORE, not 'LOWER'")
        ]),
        (f"{KAFKA}ValueToKey", {"fields": " , "}, ["transforms.x.fields: must name at least one, not ' , '"]),
        (f"{KAFKA}ValueToKey", {"fields": "id", "predicate": "p", "negate": "maybe"}, [
            "transforms.x.predicate: p is not in predicates",
            "transforms.x.negate: must be true or false, not 'maybe'",
        ]),
        (f"{KAFKA}ValueToKey", {"fields": "id", "negate": "true"}, [
            "transforms.x.negate: there is no predicate to negate; set predicate, or leave negate out"
        ]),
        (f"{KAFKA}ExtractFeld$Key", {"field": "id"}, [
            (f"transforms.x.type: {KAFKA}ExtractFeld$Key is not a transform that Compactory knows; "
            f"did you mean {KAFKA}ExtractField$Key?")
        ]),
    ],
)  # fmt: skip
def test_options_that_are_wrong(class_name: str, settings: dict[str, str], expected: list[str]) -> None:
    assert problems_of(class_name, settings) == expected


PATTERNS = [
    "yyyy-MM-dd HH:mm:ss.SSS",
    "yyyyMMddHHmmssSSS",
    "d/M y, H 'o''clock' m s S",
    "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
]


@given(st.datetimes(GREGORIAN, LAST), st.sampled_from(PATTERNS))
def test_what_a_pattern_writes_it_reads(moment: datetime, pattern: str) -> None:
    millis = (moment - EPOCH) // timedelta(milliseconds=1)
    date_format = DateFormat(pattern)
    assert date_format.read(date_format.format(millis)) == millis


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        # printed by java.text.SimpleDateFormat, Java 17 and 25, in UTC
        ("yyyy-MM-dd HH:mm:ss Z", "2024-01-01 01:02:03 -0800", 1704099723000),
        ("yyyy", "44", -60778857600000),
        ("yyyy-M-d", "2024-01-15", 1705276800000),
        ("X", "-08", 28800000),
        ("XX", "+0530", -19800000),
        ("XXX", "-03:30", 12600000),
        ("XXX", "Z", 0),
    ],
)
def test_texts_are_read_as_java_reads_them(pattern: str, text: str, expected: int) -> None:
    assert DateFormat(pattern).read(text) == expected


FIELDS_LEFT_OUT = ["YYYY", "W", "DDD", "F", "LLLL", "kk", "KK", "G", "E", "a", "h", "z", "MMM", "MMMM", "yy", "ZZ"]


@pytest.mark.parametrize("pattern", FIELDS_LEFT_OUT)
def test_other_fields_are_refused_by_name(pattern: str) -> None:
    with pytest.raises(ValueError, match=f"^must be a pattern of SimpleDateFormat: {pattern} {FIELDS}$"):
        DateFormat(pattern)


MISMATCHES = [("yyyy", ""), ("yyyy", "x"), ("yyyy-MM", "2024/01"), ("yyyyMMdd", "20240229trailing"), ("yyyy", " 2024")]
MISMATCHES += [("yyyy", "\uff11\uff12\uff10\uff14"), ("yyyy", "-44"), ("X", "?"), ("Z", "+02:00"), ("X", "+2")]
MISMATCHES += [("XX", "+02:00"), ("XXX", "+0200"), ("XXX", "+24:00"), ("SSS", "20240101111111")]
NO_DATES = [("yyyy-MM-dd", text) for text in ("2024-13-01", "2024-02-30", "2024-00-01", "1582-10-10")]
NO_DATES += [("HH:mm:ss.SSS", text) for text in ("24:00:00.000", "23:60:00.000", "23:00:60.000", "23:00:00.1000")]


@pytest.mark.parametrize(("pattern", "text"), MISMATCHES + NO_DATES)
def test_texts_that_do_not_match(pattern: str, text: str) -> None:
    """Java reads some of them leniently: it carries numbers over and passes over what follows."""
    with pytest.raises(ValueError, match=r"^the text (does not match the pattern|is no date and time of day of the)"):
        DateFormat(pattern).read(text)


@given(st.datetimes(GREGORIAN - timedelta(80_000), LAST), st.sampled_from([*PATTERNS, "yyyy", "ss.SSS", "dd HH"]))
def test_short_cuts_agree_with_the_long_way(moment: datetime, pattern: str) -> None:
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    raw = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d} {moment:%H:%M:%S}{fraction}"
    plain = applied(row(at="timestamp"), CONVERTER, field="at", target_type="string", format=pattern)
    as_unix = applied(row(at="timestamp"), CONVERTER, field="at", target_type="unix")
    by_unix = applied(as_unix, CONVERTER, field="at", target_type="string", format=pattern)
    assert in_json(plain.value, at=raw) == in_json(by_unix.value, at=raw)

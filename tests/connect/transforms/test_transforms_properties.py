"""Properties of transforms over random tables and rows; what single records become is in test_transforms_golden."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.javatext.java_regex import java_pattern
from compactory_connectors.connect.record.record import Java, RowError
from compactory_connectors.connect.record.schema import Schema, Type
from compactory_connectors.connect.transforms import SourceRecord
from compactory_connectors.connect.transforms.cast import caster, float32
from compactory_connectors.kafka.producer_record import ProducerRecord
from tests.connect.transform_cases import chain_of, functions_of, raw_row, source_record

KAFKA = "org.apache.kafka.connect.transforms."
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text("abcdefgh_", min_size=1, max_size=6)

TEXTS: dict[str, st.SearchStrategy[str]] = {
    "int8": INTEGERS.map(str),
    "bool": st.sampled_from("tf"),
    "float8": st.floats(allow_nan=False, allow_infinity=False, min_value=1e-3, max_value=1e6).map(repr),
    "text": st.text(max_size=8),
    "bytea": st.binary(max_size=4).map(lambda data: "\\x" + data.hex()),
    "date": st.dates().map(lambda day: f"{day:%Y-%m-%d}".zfill(10)),
    "timestamp": st.datetimes().map(lambda moment: moment.isoformat(sep=" ").zfill(19)),
    "numeric:2": st.decimals(-1000, 1000, places=2).map(str),
}


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> list[dict[str, Any]]:
    """Columns of a table, some of them structs."""
    kinds = st.sampled_from([*TEXTS, "struct"] if depth else [*TEXTS])
    described = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        kind = draw(kinds)
        column: dict[str, Any] = {"name": name, "type": kind}
        if kind == "struct":
            column["columns"] = draw(columns(depth - 1))
        elif kind.startswith("numeric"):
            column["precision"] = "9"
        described.append(column)
    return described


def rows(described: Sequence[Mapping[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Rows of such a table; any value may be null, but no struct."""
    values = {
        column["name"]: rows(column["columns"]) if column["type"] == "struct" else st.none() | TEXTS[column["type"]]
        for column in described
    }
    return st.fixed_dictionaries(values)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A table and a row of it."""
    described = draw(columns())
    return described, draw(rows(described))


Table = tuple[list[dict[str, Any]], dict[str, Any]]


def written(table: Table, *transforms: dict[str, str]) -> ProducerRecord:
    """The record by JsonConverter: key, value, topic, no headers."""
    described, row = table
    converter = JsonConverter(schemas_enable=True)
    functions = functions_of(source_record(described), chain_of(transforms), converter, described)
    record = functions.render(raw_row(described, row))
    assert record is not None
    return record


def value(table: Table, *transforms: dict[str, str]) -> Any:
    text = written(table, *transforms)[1]
    assert text is not None
    return json.loads(text)


def kafka(name: str, **options: str) -> dict[str, str]:
    return {"type": f"{KAFKA}{name}", **{key.replace("_", "."): text for key, text in options.items()}}


# --- Cast -------------------------------------------------------------------------------------------------------------


@given(INTEGERS, st.sampled_from(sorted(BITS)))
def test_integers_wrap_around(number: int, target: str) -> None:
    cast = caster(Java.LONG, Schema(type=Type.INT64), Type[target.upper()])
    expected = int.from_bytes(struct.pack(">q", number)[-BITS[target] // 8 :], "big", signed=True)
    assert cast(number) == expected


@given(INTEGERS)
def test_integers_as_texts_go_back_and_forth(number: int) -> None:
    as_text = caster(Java.LONG, Schema(type=Type.INT64), Type.STRING)(number)
    assert caster(Java.STRING, Schema(type=Type.STRING), Type.INT64)(as_text) == number


@given(st.floats(), st.sampled_from(["int8", "int16", "int32", "int64"]))
def test_floats_are_cut_off_and_saturate(number: float, target: str) -> None:
    cast = caster(Java.DOUBLE, Schema(type=Type.FLOAT64), Type[target.upper()])
    if math.isnan(number):
        assert cast(number) == 0
        return
    width = max(BITS[target], 32)
    ends = (-(1 << width - 1), (1 << width - 1) - 1)
    whole = ends[number > 0] if math.isinf(number) else max(ends[0], min(ends[1], math.trunc(number)))
    assert (cast(number) - whole) % (1 << BITS[target]) == 0
    assert -(1 << BITS[target] - 1) <= cast(number) < 1 << BITS[target] - 1


@given(st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False))
def test_doubles_become_the_nearest_floats(number: float) -> None:
    try:
        expected = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        expected = math.copysign(math.inf, number)
    assert float32(number) == expected


@given(st.fractions(min_value=-(10**12), max_value=10**12, max_denominator=10**6), st.integers(0, 40))
def test_numbers_become_the_nearest_floats_without_a_step_between(fraction: Fraction, shift: int) -> None:
    number = (fraction.numerator << shift) + 1
    assume(number)  # NaN is beside zero
    nearest = float32(number)
    pattern = struct.unpack("i", struct.pack("f", nearest))[0]
    for neighbour in (pattern - 1, pattern + 1):
        other = struct.unpack("f", struct.pack("i", neighbour))[0]
        assert abs(Fraction(other) - number) >= abs(Fraction(nearest) - number)


@pytest.mark.parametrize("text", ["", " 1", "1.0", "1_0", "x", "--1", "99999999999999999999"])
def test_texts_that_are_no_numbers_are_errors_of_their_row(text: str) -> None:
    with pytest.raises(RowError) as caught:
        written(([{"name": "a", "type": "text"}], {"a": text}), kafka("Cast$Value", spec="a:int64"))
    assert str(caught.value) == "column a: Cast: the text is not a whole number of 64 bits, or out of its range"


# --- structs ----------------------------------------------------------------------------------------------------------


@given(tables())
def test_what_is_hoisted_can_be_extracted_again(table: Table) -> None:
    hoisted = (kafka("HoistField$Value", field="h"), kafka("ExtractField$Value", field="h"))
    assert written(table, *hoisted) == written(table)


def leaves(described: Sequence[Mapping[str, Any]], row: Any, prefix: str = "") -> dict[str, bool]:
    """Paths of the columns that are no structs, and whether they are null."""
    found: dict[str, bool] = {}
    for column in described:
        item = None if row is None else row[column["name"]]
        if column["type"] == "struct":
            found |= leaves(column["columns"], item, f"{prefix}{column['name']}.")
        else:
            found[prefix + column["name"]] = item is None
    return found


@given(tables())
def test_flatten_leaves_the_paths_of_all_values_and_no_structs(table: Table) -> None:
    once = value(table, kafka("Flatten$Value"))
    assert {name: item is None for name, item in once["payload"].items()} == leaves(*table)
    assert all(field["type"] != "struct" for field in once["schema"]["fields"])
    assert value(table, kafka("Flatten$Value"), kafka("Flatten$Value")) == once


@given(tables())
def test_renamed_there_and_back_is_unchanged(table: Table) -> None:
    names = [column["name"] for column in table[0]]
    there = ",".join(f"{name}:{name}X" for name in names)
    back = ",".join(f"{name}X:{name}" for name in names)
    chain = (kafka("ReplaceField$Value", renames=there), kafka("ReplaceField$Value", renames=back))
    assert written(table, *chain) == written(table)


@given(tables())
def test_what_is_inserted_and_left_out_again_was_never_there(table: Table) -> None:
    inserted = kafka("InsertField$Value", static_field="new!", static_value="x", topic_field="topic")
    assert value(table, inserted)["payload"] == value(table)["payload"] | {"topic": "t", "new": "x"}
    assert written(table, inserted, kafka("ReplaceField$Value", exclude="new,topic")) == written(table)


@given(tables(), st.data())
def test_include_and_exclude_are_complements(table: Table, data: st.DataObject) -> None:
    names = [column["name"] for column in table[0]]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    kept = value(table, kafka("ReplaceField$Value", include=",".join(chosen)))["payload"]
    left = value(table, kafka("ReplaceField$Value", exclude=",".join(chosen)))["payload"]
    assert set(kept) == set(chosen)
    assert kept | left == value(table)["payload"]


@given(tables(), st.data())
def test_a_key_holds_what_the_value_does(table: Table, data: st.DataObject) -> None:
    names = [column["name"] for column in table[0]]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    record = written(table, kafka("ValueToKey", fields=",".join(chosen)))
    key, whole = (json.loads(half or b"null") for half in record[:2])
    assert key["payload"] == {name: whole["payload"][name] for name in chosen}
    assert record[1] == written(table)[1]
    first = written(table, kafka("ValueToKey", fields=chosen[0]), kafka("ExtractField$Key", field=chosen[0]))
    assert json.loads(first[0] or b"null")["payload"] == whole["payload"][chosen[0]]


MASKED = ["int8", "bool", "float8", "text"]


@given(st.sampled_from(MASKED), st.data(), st.booleans())
def test_masks_keep_types_and_nulls_and_hide_everything_else(kind: str, data: st.DataObject, null: bool) -> None:
    table: Table = ([{"name": "a", "type": kind}], {"a": None if null else data.draw(TEXTS[kind])})
    masked, plain = value(table, kafka("MaskField$Value", fields="a")), value(table)
    assert masked["schema"] == plain["schema"]
    nothing: Any = {"int8": 0, "bool": False, "float8": 0.0, "text": ""}[kind]
    assert masked["payload"] == {"a": None if null else nothing}


@given(tables(), st.text("ab.", min_size=1), st.integers(-5, 5))
def test_schema_metadata_changes_the_schema_alone(table: Table, name: str, version: int) -> None:
    changed = value(table, kafka("SetSchemaMetadata$Value", schema_name=name, schema_version=str(version)))
    plain = value(table)
    assert changed == {"schema": plain["schema"] | {"name": name, "version": version}, "payload": plain["payload"]}


@given(tables())
def test_change_case_renames_at_every_depth(table: Table) -> None:
    jcustenborder = "com.github.jcustenborder.kafka.connect.transform.common.ChangeCase$Value"
    upper = {"type": jcustenborder, "from": "LOWER_UNDERSCORE", "to": "UPPER_UNDERSCORE"}
    lower = {"type": jcustenborder, "from": "UPPER_UNDERSCORE", "to": "LOWER_UNDERSCORE"}
    assert json.dumps(value(table, upper, lower)["schema"]) == json.dumps(value(table)["schema"])


# --- topics and predicates --------------------------------------------------------------------------------------------

TOPICS = st.text("abc._-19", min_size=1, max_size=9)


@given(TOPICS)
def test_routed_by_all_of_its_name_a_topic_stays(topic: str) -> None:
    (spec,) = chain_of([kafka("RegexRouter", regex="(.*)", replacement="$1")])
    record = replace(source_record([{"name": "a", "type": "int8"}]), topic=topic)
    assert spec.transform.apply(record) == record


@given(TOPICS, st.sampled_from(["a.*", "[ab]+", ".*c", "b"]), st.booleans())
def test_a_filter_drops_what_its_predicate_says(topic: str, pattern: str, negate: bool) -> None:
    predicates = {"p": {"type": f"{KAFKA}predicates.TopicNameMatches", "pattern": pattern}}
    chain = chain_of([kafka("Filter", predicate="p", negate=str(negate))], predicates)
    described: list[dict[str, Any]] = [{"name": "a", "type": "int8"}]
    record = replace(source_record(described), topic=topic)
    dropped = functions_of(record, chain, StringConverter(), described).render([b"1"]) is None
    assert dropped is ((java_pattern(pattern).fullmatch(topic) is not None) is not negate)


@given(st.none() | TEXTS["text"])
def test_tombstones_are_told_apart_row_by_row(text: str | None) -> None:
    predicates = {"p": {"type": f"{KAFKA}predicates.RecordIsTombstone"}}
    described: list[dict[str, Any]] = [{"name": "a", "type": "text"}, {"name": "b", "type": "int8", "required": True}]
    chain = chain_of(
        [
            kafka("ValueToKey", fields="b"),
            kafka("ExtractField$Value", field="a"),
            kafka("RegexRouter", regex=".*", replacement="nulls", predicate="p"),
            kafka("Filter", predicate="p", negate="true"),
        ],
        predicates,
    )
    functions = functions_of(source_record(described), chain, StringConverter(), described)
    raw = raw_row(described, {"a": text, "b": "1"})
    expected: Any = None if text is not None else (b"Struct{b=1}", None, "nulls", [])
    assert functions.render(raw) == expected
    assert functions.render_deletion(raw) == expected


# --- compactory.transform ---------------------------------------------------------------------------------------------


def unchanged(record: SourceRecord) -> SourceRecord:
    return record


@given(tables(), st.booleans())
def test_a_function_that_changes_nothing_is_not_noticed(table: Table, numeric: bool) -> None:
    described, row = table
    converter = JsonConverter(schemas_enable=False, numeric=numeric)
    with_function, without = (
        functions_of(source_record(described), chain_of([], None, function), converter, described).render(
            raw_row(described, row)
        )
        for function in (f"{__name__}:unchanged", None)
    )
    assert with_function == without

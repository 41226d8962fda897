"""``compactory.transform``: the values that a function may return, and errors that it raises."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.connect.transforms import SourceRecord
from compactory_connectors.kafka.producer_record import ProducerRecord
from tests.connect.transform_cases import chain_of, functions_of, raw_row, source_record

KAFKA = "org.apache.kafka.connect.transforms."
COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "int8", "required": True},
    {"name": "name", "type": "text"},
    {"name": "at", "type": "timestamp"},
    {"name": "day", "type": "date"},
    {"name": "amount", "type": "numeric:2", "precision": "9"},
    {"name": "place", "type": "struct", "columns": [{"name": "x", "type": "float8"}]},
]
ROW = {"id": "7", "name": "n", "at": "2024-01-01 11:11:11.123456", "day": "2024-01-02", "amount": "1.5"}
ROW |= {"place": {"x": "2"}}  # type: ignore[dict-item]  # a struct stands in JSON
KEY = [{"type": f"{KAFKA}ValueToKey", "fields": "id"}, {"type": f"{KAFKA}ExtractField$Key", "field": "id"}]

BARE = JsonConverter(schemas_enable=False)

Change = Callable[[SourceRecord], Any]
change: Change = print
"""The function of the current test."""


def function(record: SourceRecord) -> Any:
    return change(record)


def written(
    monkeypatch: pytest.MonkeyPatch, by: Change, converter: Converter = BARE, **row: Any
) -> ProducerRecord | None:
    monkeypatch.setattr(f"{__name__}.change", by)
    chain = chain_of(KEY, None, f"{__name__}:function")
    functions = functions_of(source_record(COLUMNS), chain, converter, COLUMNS)
    return functions.render(raw_row(COLUMNS, ROW | row))


def test_what_a_function_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[SourceRecord] = []
    assert written(monkeypatch, records.append) is None  # it returned None
    moment = datetime(2024, 1, 1, 11, 11, 11, 123000, tzinfo=UTC)
    day = datetime(2024, 1, 2, tzinfo=UTC)
    assert records == [
        SourceRecord(
            topic="t",
            key=7,
            value={
                "id": 7,
                "name": "n",
                "at": round(moment.timestamp() * 1000),
                "day": day.timestamp() // 86400,
                "amount": Decimal("1.50"),
                "place": {"x": 2.0},
            },
        )
    ]


def test_values_may_be_anything_where_json_has_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(record: SourceRecord) -> SourceRecord:
        unchanged_fields = {"at": record.value["at"], "amount": record.value["amount"]}
        new: dict[str, Any] = {"id": "seven", "tags": ["a", 1, None, True, {"b": 1.5}], "raw": b"\x01", "name": None}
        return record.with_value(unchanged_fields | new)

    record = written(monkeypatch, free)
    assert record is not None
    expected = (
        b'{"at":1704107471123,"amount":"AJY=","id":"seven","tags":["a",1,null,true,{"b":1.5}],"raw":"AQ==","name":null}'
    )
    assert record[:2] == (b"7", expected)
    assert written(monkeypatch, lambda record: record.with_value([1, "x"])) == (b"7", b'[1,"x"]', "t", [])


@pytest.mark.parametrize("number", ["NaN", "-sNaN", "Infinity", "-Infinity"])
def test_decimals_that_are_no_numbers_are_quoted(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """They are quoted as floats are, whatever field has them: JSON has no such number."""
    record = written(monkeypatch, lambda record: record.with_value({"free": Decimal(number)}))
    assert record is not None
    assert json.loads(record[1] or b"", parse_constant=pytest.fail) == {"free": number.removeprefix("-s")}


def test_no_value_is_a_tombstone(monkeypatch: pytest.MonkeyPatch) -> None:
    record = written(monkeypatch, lambda record: record.with_value(None))
    assert record is not None
    assert record[1] is None


@pytest.mark.parametrize(("numeric", "text"), [(False, b'"ASw="'), (True, b"3.00")])
def test_changed_decimals_are_written_as_the_others_of_their_column(
    monkeypatch: pytest.MonkeyPatch, numeric: bool, text: bytes
) -> None:
    converter = JsonConverter(schemas_enable=False, numeric=numeric)
    record = written(monkeypatch, lambda record: record.with_value({"amount": 3, "place": {"x": 1}}), converter)
    assert record is not None
    assert record[1] == b'{"amount":' + text + b',"place":{"x":1}}'
    with pytest.raises(RowError, match="more digits than its NUMERIC column"):
        written(monkeypatch, lambda record: record.with_value({"amount": Decimal("1.234")}), converter)


@pytest.mark.parametrize("returned", [{"id": True}, {"place": {"x": True}}])
def test_a_value_of_another_class_is_changed_although_python_takes_it_for_equal(
    monkeypatch: pytest.MonkeyPatch, returned: dict[str, Any]
) -> None:
    record = written(monkeypatch, lambda record: record.with_value(returned), id="1", place={"x": "1"})
    assert record is not None
    assert b":true" in (record[1] or b"")


def raising(record: SourceRecord) -> SourceRecord:
    raise ValueError(f"a secret: {record.value}")


BAD: list[tuple[Change, str]] = [
    (raising, r"raised ValueError \(in raising, line \d+\)"),
    (lambda record: record.value, "must return the record, or None to drop it"),
    (lambda record: dataclasses.replace(record, key=8), "must leave topic and key to the transforms"),
    (lambda record: dataclasses.replace(record, topic="other"), "must leave topic and key to the transforms"),
]


@pytest.mark.parametrize(("by", "problem"), BAD)
def test_functions_that_misbehave(monkeypatch: pytest.MonkeyPatch, by: Change, problem: str) -> None:
    """The error says where, and shows no value."""
    with pytest.raises(RowError, match=rf"^compactory\.transform: {__name__}:function {problem}$") as caught:
        written(monkeypatch, by)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_json_can_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RowError, match="JSON can't hold a value of class datetime"):
        written(monkeypatch, lambda record: record.with_value({"at": datetime.now(UTC)}))
    with pytest.raises(RowError, match="names of fields must be texts"):
        written(monkeypatch, lambda record: record.with_value({1: 2}))


def test_what_a_function_does_to_a_value_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(record: SourceRecord) -> SourceRecord:
        record.value["place"]["x"] += 1
        return record

    first, second = written(monkeypatch, spoil), written(monkeypatch, spoil)
    assert first == second
    assert first is not None
    assert b'"x":3.0' in (first[1] or b"")

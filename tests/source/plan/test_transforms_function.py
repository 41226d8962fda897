"""``compactory.transform``: what a function may return, and what becomes of what it raises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from compactory_connectors.source.plan.row_function import Written
from compactory_connectors.source.record.converters import Converter
from compactory_connectors.source.record.converters.json_converter import JsonConverter
from compactory_connectors.source.record.converters.string_converter import StringConverter
from compactory_connectors.source.record.record import RowError
from compactory_connectors.source.record.transforms import SourceRecord
from tests.source.transform_cases import chain_of, functions_of, raw_row, source_record

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

BARE, SCHEMA, TEXT = JsonConverter(schemas_enable=False), JsonConverter(schemas_enable=True), StringConverter()

Change = Callable[[SourceRecord], Any]
change: Change = print
"""What the function of the test at hand does."""


def function(record: SourceRecord) -> Any:
    return change(record)


def written(monkeypatch: pytest.MonkeyPatch, by: Change, converter: Converter = BARE, **row: Any) -> Written | None:
    monkeypatch.setattr(f"{__name__}.change", by)
    chain = chain_of(KEY, None, f"{__name__}:function")
    functions = functions_of(source_record(COLUMNS), chain, converter, COLUMNS)
    return functions.record(raw_row(COLUMNS, ROW | row))


def test_what_a_function_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SourceRecord] = []
    assert written(monkeypatch, seen.append) is None  # it returned None
    moment = datetime(2024, 1, 1, 11, 11, 11, 123000, tzinfo=UTC)
    day = datetime(2024, 1, 2, tzinfo=UTC)
    assert seen == [
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
        kept = {"at": record.value["at"], "amount": record.value["amount"]}
        new: dict[str, Any] = {"id": "seven", "tags": ["a", 1, None, True, {"b": 1.5}], "raw": b"\x01", "name": None}
        return record.with_value(kept | new)

    record = written(monkeypatch, free)
    assert record is not None
    expected = (
        b'{"at":1704107471123,"amount":"AJY=","id":"seven","tags":["a",1,null,true,{"b":1.5}],"raw":"AQ==","name":null}'
    )
    assert record[:2] == (b"7", expected)
    assert written(monkeypatch, lambda record: record.with_value([1, "x"])) == (b"7", b'[1,"x"]', "t", [])


@pytest.mark.parametrize("converter", [BARE, SCHEMA, TEXT])
def test_no_value_is_a_tombstone(monkeypatch: pytest.MonkeyPatch, converter: Converter) -> None:
    record = written(monkeypatch, lambda record: record.with_value(None), converter)
    assert record is not None
    assert record[1] is None


def test_changed_values_are_written_by_their_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"name": "é", "at": 0, "day": -1, "amount": 3, "place": None}
    record = written(monkeypatch, lambda record: record.with_value(record.value | changes), TEXT)
    assert record is not None
    assert record[1] == (
        "Struct{id=7,name=é,at=1970-01-01 00:00:00.0,day=1969-12-31,amount=3.00}".encode()  # a null struct is left out
    )
    only_name = written(monkeypatch, lambda record: record.with_value(record.value | {"name": "x"}), TEXT)
    assert only_name is not None
    assert b"at=2024-01-01 11:11:11.123456," in (only_name[1] or b"")  # microseconds, which the function did not see


MISFITS: list[tuple[Any, str]] = [
    ({"id": None}, "id must not be null"),
    ({"id": "7"}, "id does not fit the schema: int64"),
    ({"id": True}, "id does not fit the schema: int64"),
    ({"id": 1 << 63}, "id does not fit the schema: int64"),
    ({"name": 5}, "name does not fit the schema: string"),
    ({"amount": Decimal("1.234")}, "amount does not fit the schema: bytes"),
    ({"place": 3}, "place must be a dict, as its schema is a struct"),
    ({"place": {"x": "2"}}, "x does not fit the schema: double"),
    ({"new": 1}, "the schema has no field new; add it with InsertField"),
]


@pytest.mark.parametrize(("changes", "problem"), MISFITS)
def test_values_that_do_not_fit_a_schema(monkeypatch: pytest.MonkeyPatch, changes: Any, problem: str) -> None:
    with pytest.raises(RowError) as caught:
        written(monkeypatch, lambda record: record.with_value(record.value | changes), SCHEMA)
    assert str(caught.value) == f"compactory.transform: {problem}"


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

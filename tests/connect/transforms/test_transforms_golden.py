"""Chains of transforms against what the real ones made of the same records; see tests/golden/transforms/README.md."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.record.record import RowError
from tests.connect.transform_cases import Refused, attempted, chain_of, functions_of, raw_row, source_record

RECORDS = Path(__file__).parents[2] / "golden" / "transforms" / "records.jsonl.gz"
CONVERTERS: Mapping[str, Converter] = {"json": JsonConverter(schemas_enable=True), "string": StringConverter()}
FAILURE = "fails"


def _cases() -> Iterator[tuple[str, dict[str, Any]]]:
    with gzip.open(RECORDS, "rt", encoding="utf-8") as lines:
        for line in lines:
            case: dict[str, Any] = json.loads(line)
            last = case["transforms"][-1]["type"].rsplit(".", 1)[1].split("$")[0]
            yield ("chains" if len(case["transforms"]) > 3 else last), case


CASES: dict[str, list[dict[str, Any]]] = {}
for _name, _case in _cases():
    CASES.setdefault(_name, []).append(_case)


@pytest.mark.parametrize("name", sorted(CASES))
def test_records_are_those_of_the_real_transforms(name: str) -> None:
    wrong = [problem for case in CASES[name] for problem in _problems(case)]
    assert wrong[:3] == []


def test_every_transform_and_most_of_the_corpus_is_compared() -> None:
    """Most of the corpus is compared record by record, not refused."""
    compared = [
        row
        for cases in CASES.values()
        for case in cases
        if not _left_out(case)
        for row in case.get("rows", ())
        if not _has_null_struct(case["columns"], row)
    ]
    assert len(compared) > 3000
    assert {"Cast", "ChangeCase", "ExtractField", "Filter", "Flatten", "InsertField", "MaskField"} <= CASES.keys()


def _has_null_struct(columns: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> bool:
    """Return True if a struct of the row is null, which no column of a table or field of a sink's record is."""
    structs = [column for column in columns if column["type"] == "struct"]
    return any(
        row.get(column["name"]) is None or _has_null_struct(column["columns"], row[column["name"]])
        for column in structs
    )


def _left_out(case: dict[str, Any]) -> bool:
    """Return True if the chain needs something that is refused by its name."""
    try:
        chain_of(case["transforms"], case.get("predicates"))
    except Refused as refused:
        return any("not supported" in problem for problem in refused.problems)
    return False


def _problems(case: dict[str, Any]) -> Iterator[str]:
    if _left_out(case):
        return
    try:
        specs = chain_of(case["transforms"], case.get("predicates"))
    except Refused as refused:
        if "config" not in case and not all("error" in result for result in case["results"]):
            yield f"{case['transforms']}: refused, but Kafka Connect takes it: {refused.problems}"
        return
    if "config" in case:
        yield f"{case['transforms']}: taken, but Kafka Connect refuses it: {case['config']}"
        return
    for converter_name, converter in CONVERTERS.items():
        try:
            functions = functions_of(
                source_record(case["columns"], case.get("topic", "t")), specs, converter, case["columns"]
            )
        except Refused as refused:
            yield from _wrongly_refused(case, converter_name, refused)
            continue
        for row, result in zip(case["rows"], case["results"], strict=True):
            if _has_null_struct(case["columns"], row):
                continue
            got = _readable(attempted(functions.render, raw_row(case["columns"], row)))
            expected = _expected(result, converter_name)
            if got != expected:
                yield f"{case['transforms']} of {row} by {converter_name}: {got!r} instead of {expected!r}"


def _wrongly_refused(case: dict[str, Any], converter: str, refused: Refused) -> Iterator[str]:
    """What is refused before any row is read must fail for every row in which nothing is null."""
    for row, result in zip(case["rows"], case["results"], strict=True):
        if "null" not in json.dumps(row) and _expected(result, converter) not in {None, FAILURE}:
            yield f"{case['transforms']} of {row} by {converter}: refused: {refused.problems}"


def _expected(result: dict[str, Any], converter: str) -> Any:
    if result.get("dropped"):
        return None
    if "error" in result:
        return FAILURE
    halves = [result[half][converter] if half in result else None for half in ("key", "value")]
    # the address of an array is refused here
    if any(text is not None and (text.startswith("!") or "[B@" in text) for text in halves):
        return FAILURE
    return (*halves, result["topic"], tuple(map(tuple, result.get("headers", ()))))


def _readable(got: Any) -> Any:
    if got is None or isinstance(got, RowError):
        return FAILURE if isinstance(got, RowError) else None
    key, value, topic, headers = got
    texts = tuple((name, None if value is None else value.decode()) for name, value in headers)
    return (None if key is None else key.decode(), None if value is None else value.decode(), topic, texts)

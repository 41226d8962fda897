"""What transforms do beyond key and value: topics, rows that are dropped or refused, on real servers."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from compactory.errors import CompactoryError
from compactory_connectors.connect.transforms import SourceRecord
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.config.connector import ErrorPolicy
from compactory_connectors.source.runtime.source import Source
from tests.connect.transform_cases import chain_of
from tests.source.conftest import Bench

KAFKA = "org.apache.kafka.connect.transforms."
KEY = (
    {"type": f"{KAFKA}ValueToKey", "fields": "terminal_id"},
    {"type": f"{KAFKA}ExtractField$Key", "field": "terminal_id"},
)
SKIP = ErrorPolicy(skip=True, log_each=False, name_rows=False)
TOMBSTONES = {"none": {"type": f"{KAFKA}predicates.RecordIsTombstone"}}


def run(bench: Bench, *transforms: dict[str, str], function: str | None = None, **changes: Any) -> None:
    """One round of the connector with these transforms behind those that make the key."""
    specs = chain_of([*KEY, *transforms], TOMBSTONES, function)
    config = replace(bench.connector(**changes), transforms=specs)
    Source(config, bench.kafka).run(threading.Event(), once=True, timeout=20.0)


def found(bench: Bench, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    if not bench.kafka.topics([topic]):
        return []
    return [(message.key(), message.value()) for message in read(bench.kafka, topic)]


def test_a_topic_of_its_own_for_rows_in_which_a_value_is_null(bench: Bench) -> None:
    bench.sql.execute("ALTER TABLE terminal_acquirer ALTER acquirer_id DROP NOT NULL")
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A'), ('T2', NULL)")
    route = {"regex": "(.*)", "replacement": "$1-none", "predicate": "none"}
    run(
        bench,
        {"type": f"{KAFKA}ExtractField$Value", "field": "acquirer_id"},
        {"type": f"{KAFKA}RegexRouter", **route},
    )
    assert found(bench, bench.topic) == [(b"T1", b'"A"')]
    assert found(bench, f"{bench.topic}-none") == [(b"T2", b"null")]


def test_dropped_rows_are_not_sent(bench: Bench) -> None:
    bench.sql.execute("ALTER TABLE terminal_acquirer ALTER acquirer_id DROP NOT NULL")
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A'), ('T2', NULL)")
    run(
        bench,
        {"type": f"{KAFKA}ExtractField$Value", "field": "acquirer_id"},
        {"type": f"{KAFKA}Filter", "predicate": "none"},
    )
    assert found(bench, bench.topic) == [(b"T1", b'"A"')]


def test_a_table_of_which_every_row_is_dropped_is_not_polled(bench: Bench) -> None:
    bench.add("T1")
    with pytest.raises(CompactoryError, match=r"no table of .* fits"):
        run(bench, {"type": f"{KAFKA}Filter"})
    assert found(bench, bench.topic) == []


def test_a_row_whose_key_is_not_known_holds_the_sweep(bench: Bench) -> None:
    """Its key may be one of those that the table seems to lack."""
    number = ({"type": f"{KAFKA}Cast$Key", "spec": "int32"},)
    bench.add("1", "2")
    run(bench, *number)
    bench.sql.execute("UPDATE terminal_acquirer SET terminal_id = 'two' WHERE terminal_id = '2'")
    with pytest.raises(CompactoryError, match="the key of a row is not known"):
        run(bench, *number, name=f"{bench.prefix}2", errors=SKIP)
    assert {key for key, value in found(bench, bench.topic) if value is not None} == {b"1", b"2"}
    assert all(value is not None for _, value in found(bench, bench.topic))


def shout(record: SourceRecord) -> SourceRecord | None:
    """Drops T3, fails on T4, and adds a field."""
    if record.key == "T3":
        return None
    if record.key == "T4":
        raise KeyError("a secret")
    record.value["acquirer_id"] = record.value["acquirer_id"].lower() * 2
    record.value["seen"] = True
    return record


def test_a_function_behind_the_transforms(bench: Bench) -> None:
    bench.add("T1", "T3", "T4")
    keep = {"type": f"{KAFKA}ReplaceField$Value", "include": "terminal_id,acquirer_id"}
    function = f"{__name__}:shout"
    with pytest.raises(
        Exception, match=r"row id 3: .*test_transforms_kafka:shout raised KeyError \(in shout, line \d+\)"
    ):
        run(bench, keep, function=function)
    run(bench, keep, function=function, errors=SKIP)
    assert found(bench, bench.topic) == [(b"T1", b'{"terminal_id":"T1","acquirer_id":"aa","seen":true}')]

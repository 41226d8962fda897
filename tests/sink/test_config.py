"""A sink's configuration: what is refused, with the remedy, and all of it at once. Nothing is connected to."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from compactory.errors import ConfigError
from compactory_connectors.sink.into_table.sink_config import SinkConfig, load_sink

INSERT, PK = ("insert", "upsert", "update"), ("none", "kafka", "record_key", "record_value")


def load(folder: Path, **keys: str) -> SinkConfig:
    file = folder / "sink.json"
    file.write_text(json.dumps({"topics": "t", "connection.url": "jdbc:postgresql://localhost/db", **keys}))
    return load_sink(file)


def problems(folder: Path, **keys: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, **keys)
    return [problem.partition("sink.json: ")[2] for problem in caught.value.problems]


@pytest.mark.parametrize(("insert", "pk", "delete"), [*itertools.product(INSERT, PK, ("true", "false"))])
def test_each_combination_of_modes(tmp_path: Path, insert: str, pk: str, delete: str) -> None:
    """The combinations that the JDBC sink connector takes."""
    keys = {"insert.mode": insert, "pk.mode": pk, "delete.enabled": delete}
    told = []
    if pk == "none" and insert != "insert":
        told.append(f"pk.mode: insert.mode={insert} needs a primary key; set record_key, record_value or kafka")
    if delete == "true" and pk != "record_key":
        told.append("delete.enabled: needs pk.mode=record_key, as a tombstone has nothing but its key")
    if told:
        assert problems(tmp_path, **keys) == told
    else:
        config = load(tmp_path, **keys)
        assert (config.insert_mode, config.pk_mode, config.delete_enabled) == (insert, pk, delete == "true")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"insert.mod": "upsert"}, "insert.mod: unknown key; did you mean insert.mode?"),
        ({"insert.mode": "merge"}, "insert.mode: must be one of insert, upsert, update, not 'merge'"),
        ({"batch.size": "0"}, "batch.size: must be a whole number of at least 1, not '0'"),
        ({"auto.create": "perhaps"}, "auto.create: must be true or false, not 'perhaps'"),
        ({"pk.mode": "kafka", "pk.fields": "a,b"}, "pk.fields: pk.mode=kafka takes three names"),
        ({"table.name.format": " "}, "table.name.format: must not be empty"),
        ({"topics.regex": "t.*"}, "topics.regex: is given beside topics; drop one of them"),
        ({"topics": "", "topics.regex": "("}, "topics.regex: is not a regular expression that is supported"),
        ({"topics": "", "topics.regex": "a[b[c]]"}, "topics.regex: classes within classes"),
        ({"table.name.format": "a.b.c.${topic}"}, "is not the name of a table; write table"),
        ({"table.name.format": '"a'}, "is not the name of a table; write table"),
        ({"topics": ""}, "topics: missing; name the topics, separated by commas"),
        ({"db.timezone": "Asia/Tokyo"}, "db.timezone: times are written in UTC; leave it out"),
        ({"date.calendar.system": "PROLEPTIC_GREGORIAN"}, "date.calendar.system: must be 'LEGACY'"),
        ({"value.converter": "JsonConvert"}, "value.converter"),
        ({"transforms": "a"}, "transforms: a sink has none: choose fields by fields.whitelist"),
        ({"consumer.override.max.pol.interval.ms": "1"}, "consumer.override.max.pol.interval.ms: "),
        ({"connection.url": "jdbc:mysql://h/d"}, "connection.url: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named_with_the_remedy(tmp_path: Path, keys: dict[str, str], told: str) -> None:
    (found,) = problems(tmp_path, **keys)
    assert told in found


def test_all_problems_come_at_once_and_no_secret(tmp_path: Path) -> None:
    keys = {"insert.mod": "x", "batch.size": "0", "db.timezone": "X", "transforms": "a", "connection.url": "secret"}
    found = problems(tmp_path, **keys)
    assert len(found) == 5
    assert "secret" not in str(found)


def test_keys_without_effect_are_told(tmp_path: Path) -> None:
    config = load(tmp_path, **{"tasks.max": "4", "max.retries": "10", "errors.deadletterqueue.topic.name": "d"})
    assert [note.partition(":")[0] for note in config.notes] == [
        "tasks.max",
        "max.retries",
        "errors.deadletterqueue.topic.name",
    ]

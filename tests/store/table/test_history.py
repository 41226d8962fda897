"""Random histories against a plain model: ownership, active, both kinds of index, tombstones, bad records."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from compactory import BadRecord, Directory, GlobalStore, Index, View
from tests.store.model import Model, Row
from tests.store.tables import Log
from tests.store.topics import Topics

INDEXES = [Index("unique", unique=True), Index("shared")]
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "active": {"active": "isActive"},
    "indexed": {"indexes": INDEXES},
    "active and unique": {"active": "isActive", "indexes": INDEXES[:1]},
    "keyed": {"key": "name"},
    "everything": {"key": "name", "active": "isActive", "indexes": INDEXES},
}


def random_value(chance: random.Random) -> bytes | None:
    kind = chance.random()
    if kind < 0.15:
        return None
    if kind < 0.22:
        return chance.choice([b"", b"[]", b"{", b"null", b'{"name":null}', b'{"name":false}'])
    doc: dict[str, Any] = {"name": chance.choice(["A", "B", "C", 7]), "n": chance.randrange(10**6)}
    if chance.random() < 0.7:
        doc["isActive"] = chance.choice([True, True, False, None])
    if chance.random() < 0.8:
        doc["unique"] = chance.choice(["u1", "u2", "u3", 1, None])
    if chance.random() < 0.8:
        doc["shared"] = chance.choice(["s1", "s2", 2])
    return orjson.dumps(doc)


def compare(view: View[Any], model: Model) -> None:
    """Every way to read must agree with the model."""
    entries = model.entries()
    assert {key: view.raw(key) for key in view} == entries
    assert dict(view.items()) == {key: orjson.loads(value) for key, value in entries.items()}
    assert len(view) == len(entries)
    if model.directory.key is None:
        for key in model.bad_keys() - {name.encode() for name in entries}:
            with pytest.raises(BadRecord):
                view.get(key.decode())
    names = {index.name for index in model.directory.indexes}
    if "shared" in names:
        for wanted in ("s1", "s2", 2, "absent"):
            assert [entry.key for entry in view.find_entries(shared=wanted)] == model.find(entries, "shared", wanted)
    if "unique" in names:
        for wanted in ("u1", "u2", "u3", 1, "absent"):
            expected = model.find(entries, "unique", wanted)
            found = view.find_entries(unique=wanted)
            assert (len(found) == 1 and found[0].key in expected) if expected else not found
            if expected:
                best = max((view.entry(key) for key in expected), key=lambda e: (e.timestamp_ms, e.partition, e.offset))
                assert found == [best]
                assert view.one(unique=wanted) == orjson.loads(best.value)
        assert set(view.index("unique")) == {
            doc["unique"] for doc in map(orjson.loads, entries.values()) if doc.get("unique") is not None
        }


@pytest.mark.parametrize("shape", SHAPES)
def test_random_histories_pure(shape: str, seeded: random.Random) -> None:
    """Guarantees 4 and 5: after every record the store answers as the model does."""
    for _ in range(60):
        log, model = Log(Directory("d", **SHAPES[shape])), Model(Directory("d", **SHAPES[shape]))
        for _ in range(seeded.randrange(5, 60)):
            key, value, at = seeded.choice("1234").encode(), random_value(seeded), seeded.randrange(20)
            offset = log.put(key, value, at=at)
            model.rows.append(Row(key, value, 0, offset, at))
            compare(log.view, model)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_histories_in_runs(shape: str, seeded: random.Random) -> None:
    """Guarantees 1 and 4: column by column or record by record, the outcome is the same."""
    for _ in range(150):
        log, model = Log(Directory("d", **SHAPES[shape])), Model(Directory("d", **SHAPES[shape]))
        for _ in range(seeded.randrange(1, 8)):
            keys = seeded.choice(["1234", "123456789abcdefghijklmnopqrstuvwxyz"])
            fair = seeded.random() < 0.5
            rows = []
            for _ in range(seeded.randrange(1, 12)):
                value = random_value(seeded)
                while fair and not value:
                    value = random_value(seeded)
                rows.append((seeded.choice(keys).encode(), value, seeded.randrange(20)))
            offsets = log.load(rows, loading=seeded.random() < 0.5)
            for (key, value, at), offset in zip(rows, offsets, strict=True):
                model.rows.append(Row(key, value, 0, offset, at))
            compare(log.view, model)


def test_random_histories_on_kafka(topics: Topics, kafka: str, seeded: random.Random) -> None:
    """Guarantees 1, 4 and 5: read from the beginning and followed live, in and out of transactions."""
    name = topics.create(3)
    directories = [Directory(shape, topic=name, **options) for shape, options in SHAPES.items()]
    models = [Model(directory) for directory in directories]
    early = GlobalStore(kafka, directories)
    with early:
        for _ in range(25):
            rows = [(seeded.choice("123456789"), random_value(seeded)) for _ in range(seeded.randrange(1, 12))]
            partition = seeded.randrange(3)
            rows = [(f"{partition}-{key}", value) for key, value in rows]  # a key keeps to one partition
            how: Callable[..., Any] = seeded.choice([topics.produce, topics.commit, topics.abort])
            tokens = how(name, *rows, partition=partition) or []
            for token, (key, value) in zip(tokens, rows, strict=False):
                early.wait_for(token)
                models[0].rows.append(Row(key.encode(), value, partition, token.offset, 0))
        early.barrier()
        stamps = timestamps(early, models[0])
        for model in models:
            model.rows = stamps
            compare(early[model.directory.name], model)
    with GlobalStore(kafka, directories) as late:
        for model in models:
            compare(late[model.directory.name], model)


def timestamps(store: GlobalStore, model: Model) -> list[Row]:
    """The broker's own clock stamps what the producer left open: take the stamps from the topic."""
    from confluent_kafka import Consumer, TopicPartition

    stamps: dict[tuple[int, int], int] = {}
    address = store._engine.kafka.bootstrap
    consumer = Consumer({"bootstrap.servers": address, "group.id": "stamps", "fetch.wait.max.ms": 10})
    wanted = {(row.partition, row.offset) for row in model.rows}
    consumer.assign([TopicPartition(model.directory.topic, number, 0) for number in range(3)])
    while wanted - stamps.keys():
        message = consumer.poll(10)
        if not message.error():
            stamps[message.partition(), message.offset()] = message.timestamp()[1]
    consumer.close()
    return [Row(row.key, row.value, row.partition, row.offset, stamps[row.partition, row.offset]) for row in model.rows]

"""Directories mastered in Kafka, and writers of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer

from compactory import Directory, GlobalStore, Index
from compactory_mastered import MasteredWriter, WriteRules
from tests.store.topics import Topics

SCHEMA = {"type": "object", "required": ["email"], "properties": {"email": {"type": "string"}}}


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def tenants(topic: str, **rules: Any) -> Directory[dict[str, Any]]:
    options = {"schema": SCHEMA, "key_from": ["email"], "unique": [["email"]], "internal": ["secret"]} | rules
    return Directory("tenants", topic=topic, indexes=[Index("email", unique=True)], rules=WriteRules(**options))


Start = Callable[..., MasteredWriter]


@pytest.fixture
def start(kafka: str) -> Iterator[Start]:
    """Return a function that starts a writer with a store of its own, as a process would."""
    with ExitStack() as stack:

        def started(*directories: Directory[Any]) -> MasteredWriter:
            store = stack.enter_context(GlobalStore(kafka, directories, unusable_directory="serve"))
            return stack.enter_context(MasteredWriter(store, directories[0]))

        yield started


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(partitions=2)


def log_of(kafka: str, topic: str) -> list[tuple[str, Any]]:
    """Return keys and values of the committed records of a topic."""
    return [(key, value) for key, value, _ in placed_log_of(kafka, topic)]


def placed_log_of(kafka: str, topic: str) -> list[tuple[str, Any, int]]:
    """Return keys, values and offsets of the committed records of a topic."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test", "auto.offset.reset": "earliest",
                         "enable.auto.commit": False, "enable.partition.eof": True})  # fmt: skip
    consumer.subscribe([topic])
    records, ended_partitions = list[tuple[str, Any, int]](), set[int]()
    partitions = consumer.list_topics(topic).topics[topic].partitions
    while len(ended_partitions) < len(partitions):
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended_partitions.add(message.partition())
        else:
            value = message.value()
            records.append((message.key().decode(), None if value is None else json.loads(value), message.offset()))
    consumer.close()
    return records

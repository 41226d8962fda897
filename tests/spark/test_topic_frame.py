"""What Spark sees of a topic: the same as a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from compactory.kafka import Kafka
from compactory_connectors.spark.topic_frame import capture, latest
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def test_the_newest_committed_value_of_each_key(spark: SparkSession, topics: Topics) -> None:
    kafka = Kafka(topics.address)
    name = topics.create()
    topics.produce(name, ("a", "1"), ("b", "1"), ("a", "2"), ("gone", "1"), ("gone", None))
    topics.abort(name, ("a", "aborted"), ("c", "aborted"))
    extent = capture(kafka, name)
    topics.produce(name, ("a", "later"))

    found = {row.key.decode(): row.value.decode() for row in latest(spark, kafka, extent).collect()}

    assert found == {"a": "2", "b": "1"}

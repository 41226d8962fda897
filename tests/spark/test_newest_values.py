"""What Spark sees of a topic: the same as a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from compactory.errors import Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.topic.entries import newest_values
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def test_the_newest_committed_value_of_each_key(spark: SparkSession, topics: Topics) -> None:
    kafka = Kafka(topics.address)
    name = topics.create(2)
    topics.produce(name, ("a", "1"), ("b", "1"), ("a", "2"), ("gone", "1"), timestamp=2000)
    topics.produce(name, ("b", "older"), partition=1, timestamp=1000)
    topics.produce(name, ("gone", None), partition=1, timestamp=3000)
    topics.abort(name, ("a", "aborted"), ("c", "aborted"))
    frame = newest_values(spark, kafka, name)
    assert {row.key.decode(): row.value.decode() for row in frame.collect()} == {"a": "2", "b": "1"}


def test_what_a_task_does_not_reach_is_known_as_such(spark: SparkSession) -> None:
    """A scheduler tries again then (exit code 3); any other failure is looked at by people."""

    def unreached(_batches: Any) -> Any:
        raise Unreachable("Kafka", "partition 0 gave nothing for 60 s")
        yield

    with pytest.raises(Unreachable, match=r"^partition 0 gave nothing for 60 s$"), spark_failures():
        spark.range(1).mapInArrow(unreached, "id long").collect()

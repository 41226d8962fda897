"""What Spark sees of a topic: the same as a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from compactory.errors import Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.topic.frame import capture, latest
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


def test_what_a_task_does_not_reach_is_known_as_such(spark: SparkSession) -> None:
    """A scheduler tries again then (exit code 3); any other failure is looked at by people."""

    def unreached(_batches: Any) -> Any:
        raise Unreachable("Kafka", "partition 0 gave nothing for 60 s")
        yield

    with pytest.raises(Unreachable, match=r"^partition 0 gave nothing for 60 s$"), spark_failures():
        spark.range(1).mapInArrow(unreached, "id long").collect()

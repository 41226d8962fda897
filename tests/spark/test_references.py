"""The values that rows of a load may refer to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from compactory import Directory
from compactory.kafka.client import Kafka
from compactory_connectors.spark.checking.references import of_topic
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def test_only_false_deletes_an_entry_that_rows_refer_to(spark: SparkSession, kafka: str, topics: Topics) -> None:
    """As for stores: not null, nothing, or a text; and a nested field is one as well."""
    topic = topics.create()
    flags = {"a": "true", "b": "null", "c": "false", "d": '"false"', "e": "0"}
    topics.produce(topic, *((key, f'{{"is":{{"on":{flag}}}}}') for key, flag in flags.items()), ("f", "{}"))
    found = of_topic(spark, Kafka(kafka), Directory(topic, active="is.on"), None)
    assert sorted(row[0] for row in found.collect()) == ["a", "b", "d", "e", "f"]

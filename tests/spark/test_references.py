"""The values that rows of a load may refer to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
import pytest

from compactory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.spark.checking.references import of_table, of_topic
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


def test_values_of_a_table_are_read_by_tasks(spark: SparkSession, database: str) -> None:
    """Each once, of rows that are not inactive; a column that is not there is told before a task runs."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('CREATE TABLE "Known" ("an id" int, active bool)')
        connection.execute('INSERT INTO "Known" VALUES (1, true), (1, NULL), (2, false), (NULL, true), (3, true)')
    place = parse_url(database)
    found = of_table(spark, place, '"Known"', "an id", "active")
    assert sorted(row[0] for row in found.collect()) == ["1", "3"]
    with pytest.raises(ConfigError, match=r'Known".nothing, to which the rules refer: column "nothing" does not exist'):
        of_table(spark, place, '"Known"', "nothing", None)

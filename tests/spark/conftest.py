"""One Spark session for the tests of a process; without Java they are skipped by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from compactory.errors import CompactoryError
from compactory_connectors.spark.session import SparkOptions, session
from tests.stack.apache_kafka import SHORT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = " ".join((*SHORT, "-XX:ReservedCodeCacheSize=160m"))
"""The cache of a JVM with one compiler alone would be full soon, and compiled code dropped for more."""

OPTIONS = SparkOptions(
    master="local[2]",
    conf={
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # a crowded machine starts a worker in more than 15 s
        "spark.driver.extraJavaOptions": JAVA,
    },
)
"""How Spark runs in tests: rows are few, and so are the tasks."""


def needs_spark() -> None:
    """Skip where Spark can't be run; with CI=true fail."""
    if shutil.which("java") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("Spark is needed: no java")


@pytest.fixture(scope="session")
def process_spark() -> Iterator[SparkSession]:
    """The process's Spark session."""
    needs_spark()
    try:
        with session("tests", OPTIONS) as started:
            yield started
    except CompactoryError as error:
        pytest.fail(f"Spark does not start: {error}")


@pytest.fixture
def spark(process_spark: SparkSession) -> SparkSession:
    """The process's session, active in this thread: Spark looks Python formats up in the active one."""
    process_spark.createDataFrame([], "n int")  # which makes it active
    return process_spark

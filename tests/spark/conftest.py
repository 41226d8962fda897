"""One Spark session for the tests of a process; whoever runs them without Java or Maven skips them by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from compactory.errors import CompactoryError
from compactory_connectors.spark.jars import JARS_VARIABLE
from compactory_connectors.spark.session import SparkOptions, session
from tests.stack.apache_kafka import SHORT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = " ".join((*SHORT, "-XX:ReservedCodeCacheSize=160m"))
"""The cache of a JVM with one compiler alone would be full soon, and compiled code dropped for more."""

OPTIONS = SparkOptions(
    master="local[2]",
    postgres_driver=True,
    conf={
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": JAVA,
    },
)
"""How Spark runs in tests: rows are few, and so are the tasks."""


def needs_spark() -> None:
    """Skip where Spark can't be run; with CI=true fail."""
    lacking = [
        name for name in ("java", *(() if os.environ.get(JARS_VARIABLE) else ("mvn",))) if not shutil.which(name)
    ]
    if lacking:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"Spark is needed: no {', '.join(lacking)}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The process's Spark session, with our jars on its class path."""
    needs_spark()
    try:
        with session("tests", OPTIONS) as started:
            yield started
    except CompactoryError as error:
        pytest.fail(f"Spark does not start: {error}")

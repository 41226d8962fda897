"""Java's exceptions as errors with a remedy; no Spark is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory_connectors.spark.failures import _of_java, _SparkFailed, spark_failures


def thrown(kind: str, said: str, cause: Any = None) -> Any:
    """A Java exception as py4j shows it."""
    return SimpleNamespace(
        getCause=lambda: cause,
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: kind),
        getMessage=lambda: said,
    )


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            thrown("ClassNotFoundException", "com.mysql.cj.jdbc.Driver"),
            ConfigError,
            r"com.mysql.cj.jdbc.Driver.*--conf spark.jars",
        ),
        (
            thrown("ClassNotFoundException", "Class org.apache.S3A not found"),
            ConfigError,
            "lacks the Java class org.apache.S3A: name",
        ),
        (thrown("ConnectException", "refused"), Unreachable, "ConnectException: refused"),
        (thrown("SparkException", "job", thrown("OutOfMemoryError", "heap")), CompactoryError, "ran out of memory"),
        (
            thrown("SparkException", "job", thrown("IOException", "No space left on device")),
            CompactoryError,
            "local.dir",
        ),
        (
            thrown("SparkException", "job", thrown("RuntimeException", "x is none")),
            _SparkFailed,
            "failed: x is none",
        ),
    ],
    ids=["driver", "file system", "server", "memory", "disk", "other"],
)
def test_the_innermost_exception_is_told(error: Any, kind: type[Exception], told: str) -> None:
    found = _of_java(error)
    assert type(found) is kind
    with pytest.raises(kind, match=told):
        raise found


def test_workers_without_compactory_are_told_by_the_remedy() -> None:
    said = "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'compactory_connectors'"
    with pytest.raises(ConfigError, match="set PYSPARK_PYTHON"), spark_failures():
        raise PySparkException(said)

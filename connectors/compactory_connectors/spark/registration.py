"""Makes the data source known to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``spark.read``, ``spark.readStream`` and ``df.write`` know ``format("compactory")`` in this session.

    Turns on the filters that Spark hands to Python data sources. Raises ConfigError for a Spark older than 4.2, and for
    Spark Connect, which has no such sessions.
    """
    from compactory.errors import ConfigError  # Spark's processes import this module as well, for a name

    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError("the data source needs a classic Spark session: Spark Connect is not supported")
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        raise ConfigError(f"the data source needs Spark 4.2 or newer, and this is {spark.version}")
    from .datasource.source import CompactorySource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(CompactorySource)

"""Makes the data source known to a session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["register"]

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register ``format("compactory")`` for ``spark.read``, ``readStream`` and ``df.write`` of this session.

    Without it Spark finds the format by the package ``pyspark_compactory``, and gives no filters to it. Works through
    Spark Connect, too. Raises ConfigError for a Spark older than 4.2. Where Spark's Python workers lack Compactory, a
    query fails with the name of their interpreter.
    """
    from compactory.errors import ConfigError

    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        raise ConfigError(f"the data source needs Spark 4.2 or newer, and this is {spark.version}")
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(_source_class())


def _source_class() -> type[DataSource]:
    """Return the data source as a local class.

    Spark pickles such a class by value, so a worker that lacks Compactory can load it and say what it lacks.
    """
    from pyspark.sql.datasource import DataSource

    class Compactory(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            try:
                from compactory_connectors.spark.datasource.source import CompactorySource
            except ImportError as error:
                raise ImportError(
                    f"Spark's Python workers run {sys.executable}, which can't import compactory_connectors.spark"
                    f" ({error}): install compactory[spark] there, or set PYSPARK_PYTHON to a Python that has it"
                ) from None
            self.source = CompactorySource(options)

        @classmethod
        def name(cls) -> str:
            return "compactory"

        def schema(self) -> Any:
            return self.source.schema()

        def reader(self, schema: Any) -> Any:
            return self.source.reader(schema)

        def streamReader(self, schema: Any) -> Any:  # noqa: N802 (Spark's name)
            return self.source.streamReader(schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self.source.writer(schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return self.source.streamWriter(schema, overwrite)

    return Compactory

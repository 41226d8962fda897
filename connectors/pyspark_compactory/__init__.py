"""``format("compactory")`` for each Spark session whose workers have this package: Spark looks for its name."""

from __future__ import annotations

from typing import ClassVar

from compactory_connectors.spark.datasource.source import CompactorySource

__all__ = ["DefaultSource"]


class DefaultSource(CompactorySource):
    """The data source under the name by which Spark finds it.

    It takes no filters of queries: Spark refuses a source that does, unless the session has
    ``spark.sql.python.filterPushdown.enabled``, which `compactory_connectors.spark.register` sets.
    """

    uses_filters: ClassVar[bool] = False

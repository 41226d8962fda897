"""The data source ``compactory`` of Spark's Python Data Source API."""

from __future__ import annotations

from contextlib import closing

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from compactory.kafka.client import Kafka

from ..export.fields import chosen, infer
from ..export.json_types import settled
from .batch import BatchReader
from .columns import RAW, RECORD, without
from .options import ReadOptions, Use
from .position import extent_of
from .stream import StreamReader

__all__ = ["CompactorySource"]


class CompactorySource(DataSource):
    """What ``spark.read.format("compactory")`` makes; `ReadOptions` says which options there are."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "compactory"

    def schema(self) -> StructType:
        """The columns where the user gives none: of the connector, else as found in all values of the topic.

        Raises ConfigError, Unreachable.
        """
        options = self._options()
        if options.raw:
            return RAW if options.headers else StructType(without(RAW, "headers"))
        if options.connector is None:
            fields = _inferred(options)
        else:
            from .connector_columns import columns_of_connector

            fields = columns_of_connector(options)
        return StructType([*fields, *without(RECORD, "_value")])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of batches. Raises ConfigError."""
        return BatchReader(self._options("batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of streams. Raises ConfigError."""
        return StreamReader(self._options("stream"), schema)

    def _options(self, use: Use = "any") -> ReadOptions:
        options = ReadOptions.read(self.options, use)
        if options.connector is None:
            return options
        from .connector_columns import with_connector  # it knows the source, and takes a second to import

        return with_connector(options)


def _inferred(options: ReadOptions) -> list[StructField]:
    """The fields of all values up to now; those whose names Spark can't tell apart are left out."""
    with closing(Kafka(options.kafka)) as kafka:
        fields, _ = chosen(infer(kafka, extent_of(kafka, options), options.directory))
    return [StructField(name, from_arrow_type(settled(kind))) for name, kind in fields.items()]

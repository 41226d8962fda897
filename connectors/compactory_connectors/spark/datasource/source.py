"""Spark's Python Data Source API: names what reads and writes, and imports it at its first use.

Spark asks in processes of their own, several for a query, and most of them need the name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .options import ReadOptions, Use

__all__ = ["CompactorySource"]


class CompactorySource(DataSource):
    """``format("compactory")``. `ReadOptions` has its options of reading, each module of a writer those of writing."""

    uses_filters: ClassVar[bool] = True
    """Readers take the filters of a query, which Spark has to be told to give."""

    @classmethod
    def name(cls) -> str:
        return "compactory"

    def schema(self) -> StructType:
        """Return the columns where the user gives none: those of the connector, else of a sample of the newest values.

        Raises ConfigError, Unreachable.
        """
        from pyspark.sql.types import StructType

        from .columns import RAW, RECORD

        options = self._options()
        if options.raw:
            return RAW
        if options.connector is not None:
            from .connector_columns import columns_of_connector

            fields = columns_of_connector(options)
        else:
            from .sampling import sampled_columns

            fields = sampled_columns(options)
        has_topics = len(options.topics) != 1
        own = [column for column in RECORD if column.name != "_value" and (has_topics or column.name != "_topic")]
        return StructType([*fields, *own])

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch import BatchReader, FilteredReader

        return (FilteredReader if self.uses_filters else BatchReader)(self._options("batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        from .stream import StreamReader

        return StreamReader(self._options("stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        names = {name.lower() for name in self.options}
        if "directory" in names:
            from .entry_writer import entry_writer

            return entry_writer(self.options, schema, overwrite)
        if "topic" in names:
            from .topic_writer import topic_writer

            return topic_writer(self.options, schema, overwrite)
        from .table_writer import table_writer

        return table_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from .stream_writer import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _options(self, use: Use = "any") -> ReadOptions:
        from .options import ReadOptions

        options = ReadOptions.read(self.options, use)
        if options.connector is not None:
            from .connector_columns import with_connector

            return with_connector(options)
        if options.value_format != "json":
            from .registry import with_registry

            return with_registry(options)
        return options

"""Spark's Python Data Source API: names what reads and writes, and imports it when it is asked for.

Spark asks in processes of their own, several for a query, and most of them need the name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from .options import ReadOptions, Use

__all__ = ["CompactorySource"]


class CompactorySource(DataSource):
    """``format("compactory")``: `ReadOptions`, `table_writer` and `entry_writer` say which options there are."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "compactory"

    def schema(self) -> StructType:
        """The columns where the user gives none: of the connector, else as found in all values of the topic.

        Raises ConfigError, Unreachable.
        """
        from pyspark.sql.types import StructType

        from .columns import RAW, RECORD

        options = self._options()
        if options.raw:
            return RAW if options.headers else StructType([column for column in RAW if column.name != "headers"])
        if options.connector is None:
            fields = _inferred(options)
        else:
            from .connector_columns import columns_of_connector

            fields = columns_of_connector(options)
        return StructType([*fields, *(column for column in RECORD if column.name != "_value")])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of batches. Raises ConfigError."""
        from .batch import BatchReader

        return BatchReader(self._options("batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of streams. Raises ConfigError."""
        from .stream import StreamReader

        return StreamReader(self._options("stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of ``df.write``. Raises ConfigError, Unreachable."""
        if any(name.lower() == "directory" for name in self.options):
            from .entry_writer import entry_writer

            return entry_writer(self.options, schema, overwrite)
        from .table_writer import table_writer

        return table_writer(self.options, schema, overwrite)

    def _options(self, use: Use = "any") -> ReadOptions:
        from .options import ReadOptions

        options = ReadOptions.read(self.options, use)
        if options.connector is None:
            return options
        from .connector_columns import with_connector

        return with_connector(options)


def _inferred(options: ReadOptions) -> list[StructField]:
    """Return the fields of all values up to now. A warning lists fields that Spark can't tell apart by name."""
    import logging
    from contextlib import closing

    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField

    from compactory.kafka.client import Kafka

    from ..typed.fields import chosen, infer
    from ..typed.json_types import settled
    from .position import extent_of

    with closing(Kafka(options.kafka)) as kafka:
        fields, left_out = chosen(infer(kafka, extent_of(kafka, options), options.directory))
    if left_out:
        logging.getLogger("compactory.spark").warning(
            "topic %s: fields without a column: %s; names begin with _, or differ from another in case alone",
            options.directory.topic, ", ".join(left_out),
        )  # fmt: skip
    return [StructField(name, from_arrow_type(settled(kind))) for name, kind in fields.items()]

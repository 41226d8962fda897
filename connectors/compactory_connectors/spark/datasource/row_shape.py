"""The shape of the rows of a read: which columns, and how they are made of records. Travels to the executors."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from ..typed.typed_rows import TypedRows, timestamps
from ..typed.values import ValueReader, arrow_schema
from .columns import checked_fields
from .options import ReadOptions

__all__ = ["RowShape"]


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of rows. ``fields`` are those of values; ``changes``: each record is a row, also a deletion."""

    options: ReadOptions
    schema: pa.Schema
    fields: StructType
    changes: bool

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType, *, changes: bool) -> RowShape:
        """Return the shape of rows in these columns. Raises ConfigError with all columns that do not exist."""
        return cls(options, arrow_schema(schema), checked_fields(schema, raw=options.raw), changes)

    @property
    def raw(self) -> bool:
        return self.options.raw

    def typed_rows(self, topic: str) -> TypedRows:
        """Return what makes the typed rows of one task. Raises ConfigError of a schema registry."""
        read_document = None
        if self.options.converter is not None:
            from .registry import registry_reader

            read_document = registry_reader(self.options.converter)
        reader = ValueReader(
            self.fields,
            envelope=self.options.envelope,
            active=self.options.active,
            base64=self.options.base64_decimals,
            read_document=read_document,
        )
        return TypedRows(self.schema, reader, topic, changes=self.changes)

    def raw_rows(self, records: pa.RecordBatch, topic: str) -> pa.RecordBatch:
        columns = [self._raw_column(records, name, topic) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _raw_column(self, records: pa.RecordBatch, name: str, topic: str) -> pa.Array:
        if name == "timestamp":
            return timestamps(records)
        return pa.array([topic] * records.num_rows, pa.string()) if name == "topic" else records.column(name)

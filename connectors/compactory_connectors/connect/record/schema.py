"""Kafka Connect's schema model: what a value is, apart from how it is written. Pure data, imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["DATE", "DECIMAL", "TIME", "TIMESTAMP", "Field", "Schema", "Type"]

DATE = "org.apache.kafka.connect.data.Date"
DECIMAL = "org.apache.kafka.connect.data.Decimal"
TIME = "org.apache.kafka.connect.data.Time"
TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"


class Type(Enum):
    """``org.apache.kafka.connect.data.Schema.Type``, by the name that JsonConverter writes."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    BYTES = "bytes"
    STRING = "string"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class Field:
    """A named member of a struct."""

    name: str
    schema: Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The schema of a value. ``name`` makes it a logical type or names a struct; ``parameters`` keep their order.

    ``values`` is the schema of an array's or a map's values, ``keys`` that of a map's keys.
    """

    type: Type
    optional: bool = False
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    keys: Schema | None = None
    values: Schema | None = None

    def as_optional(self, optional: bool) -> Schema:
        """Return the same schema, optional or not."""
        return replace(self, optional=optional)

    @classmethod
    def decimal(cls, scale: int, precision: int | None = None) -> Schema:
        """Return ``Decimal`` with its scale and, as the JDBC source connector adds it, the column's precision."""
        parameters: tuple[tuple[str, str], ...] = (("scale", str(scale)),)
        if precision is not None:
            parameters += (("connect.decimal.precision", str(precision)),)
        return cls(type=Type.BYTES, name=DECIMAL, version=1, parameters=parameters)

    @classmethod
    def date(cls) -> Schema:
        """Return ``Date``: days since 1970-01-01."""
        return cls(type=Type.INT32, name=DATE, version=1)

    @classmethod
    def time(cls) -> Schema:
        """Return ``Time``: milliseconds since midnight."""
        return cls(type=Type.INT32, name=TIME, version=1)

    @classmethod
    def timestamp(cls) -> Schema:
        """Return ``Timestamp``: milliseconds since 1970-01-01T00:00Z."""
        return cls(type=Type.INT64, name=TIMESTAMP, version=1)

    @classmethod
    def array(cls, values: Schema, *, optional: bool = False) -> Schema:
        """Return the schema of an array."""
        return cls(type=Type.ARRAY, optional=optional, values=values)

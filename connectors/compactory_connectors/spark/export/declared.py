"""Columns that were given in Spark's words: ``id bigint, name string, price decimal(10,2), at timestamp``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.types import DataType, StructField, StructType

from compactory.errors import ConfigError

from ..identifier import quoted

__all__ = ["columns_of", "in_json", "in_json_of"]


def columns_of(text: str) -> dict[str, str]:
    """The columns by name, as Spark spells their types. Raises ConfigError; needs Spark's session."""
    try:
        found = _struct(text)
    except PySparkException as error:
        said = str(error).strip().partition("\n")[0]
        raise ConfigError(f"--columns {text!r} is no list such as 'id bigint, name string': {said}") from error
    return {column.name: column.dataType.simpleString() for column in found.fields}


def in_json(columns: Mapping[str, str]) -> dict[str, pa.DataType]:
    """What values of these columns are in JSON: what is read before it is cast. Raises ConfigError."""
    text = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    return in_json_of(_struct(text).fields if text else [])


def in_json_of(columns: Iterable[StructField]) -> dict[str, pa.DataType]:
    """The same of columns of a schema; needs no session."""
    return {column.name: _in_json(column.name, column.dataType) for column in columns}


def _struct(text: str) -> StructType:
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


def _in_json(name: str, kind: DataType) -> pa.DataType:
    if isinstance(kind, t.BooleanType):
        return pa.bool_()
    if isinstance(kind, t.IntegralType):
        return pa.int64()
    if isinstance(kind, t.FloatType | t.DoubleType):
        return pa.float64()
    if isinstance(kind, t.StringType | t.DecimalType | t.DateType | t.TimestampType | t.TimestampNTZType):
        return pa.string()  # of a decimal as well: where the value has it as text it keeps all of its digits
    if isinstance(kind, t.ArrayType):
        return pa.list_(_in_json(name, kind.elementType))
    if isinstance(kind, t.StructType):
        return pa.struct([(item.name, _in_json(name, item.dataType)) for item in kind.fields])
    raise ConfigError(f"column {name!r}: JSON has nothing like {kind.simpleString()}; take string")

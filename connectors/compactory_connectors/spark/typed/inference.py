"""The columns of values whose types nobody gives: from a sample of JSON, or from Spark's schema of variants. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import types as t

__all__ = ["columns_of_variant", "infer_columns"]

_INT64: Final = range(-(1 << 63), 1 << 63)
_MOST_LEVELS: Final = 32
"""Levels of objects and lists within each other; deeper values are text."""
_MOST_FIELDS: Final = 2000
"""Fields, those of inner objects included. Objects whose field names are data have more."""


def infer_columns(documents: Iterable[dict[str, Any]]) -> tuple[list[t.StructField], list[str]]:
    """Return the fields of these objects as columns, and the names of fields without a column.

    Spark does not tell names apart by case alone, and names that begin with ``_`` are the record's own. Raises
    ValueError for too many fields.
    """
    merged: t.DataType = t.StructType()
    for document in documents:
        merged = _merge(merged, _type_of(document, _MOST_LEVELS))
    assert isinstance(merged, t.StructType)
    return _chosen(merged)


def columns_of_variant(schema: str) -> tuple[list[t.StructField], list[str]]:
    """Return the same for a schema as ``schema_of_variant_agg`` gives it. Needs a session. Raises ValueError."""
    parts = re.split(r"(`(?:[^`]|``)*`)", schema)  # quoted names are every second part
    parts[::2] = [part.replace("OBJECT<", "STRUCT<") for part in parts[::2]]
    parsed = t.StructType.fromDDL(f"value {''.join(parts)}")
    assert isinstance(parsed, t.StructType)
    value = parsed["value"].dataType
    return _chosen(value if isinstance(value, t.StructType) else t.StructType())


def _type_of(value: Any, levels: int) -> t.DataType:
    """Return the narrowest type of a value of JSON. Whole numbers beyond 64 bits are doubles."""
    if value is None:
        return t.NullType()
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        return t.LongType() if value in _INT64 else t.DoubleType()
    if isinstance(value, float):
        return t.DoubleType()
    if isinstance(value, list) and levels:
        element: t.DataType = t.NullType()
        for item in value:
            element = _merge(element, _type_of(item, levels - 1))
        return t.ArrayType(element)
    if isinstance(value, dict) and levels:
        return t.StructType([t.StructField(name, _type_of(item, levels - 1)) for name, item in value.items()])
    return t.StringType()


def _merge(first: t.DataType, second: t.DataType) -> t.DataType:
    """Return the narrowest type for values of both; text where nothing else holds them."""
    if first == second or isinstance(second, t.NullType):
        return first
    if isinstance(first, t.NullType):
        return second
    if {type(first), type(second)} == {t.LongType, t.DoubleType}:
        return t.DoubleType()
    if isinstance(first, t.ArrayType) and isinstance(second, t.ArrayType):
        return t.ArrayType(_merge(first.elementType, second.elementType))
    if isinstance(first, t.StructType) and isinstance(second, t.StructType):
        types = {field.name: field.dataType for field in first.fields}
        for field in second.fields:
            types[field.name] = _merge(types.get(field.name, t.NullType()), field.dataType)
        return t.StructType([t.StructField(name, kind) for name, kind in types.items()])
    return t.StringType()


def _chosen(fields: t.StructType) -> tuple[list[t.StructField], list[str]]:
    columns: list[t.StructField] = []
    names: set[str] = set()
    for field in fields.fields:
        if field.name and not field.name.startswith("_") and field.name.lower() not in names:
            columns.append(t.StructField(field.name, _column_type(field.dataType)))
            names.add(field.name.lower())
    if (count := sum(_field_count(column.dataType) for column in columns)) > _MOST_FIELDS:
        raise ValueError(f"the values have {count:,} different fields: give a schema with those that you want")
    used = {column.name for column in columns}
    return columns, [field.name for field in fields.fields if field.name not in used]


def _column_type(kind: t.DataType) -> t.DataType:
    """Return the type of a column: text for null and variants, and for objects whose fields Spark can't name."""
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_column_type(kind.elementType))
    if isinstance(kind, t.StructType):
        names = {field.name.lower() for field in kind.fields}
        if not names or "" in names or len(names) < len(kind.fields):
            return t.StringType()
        return t.StructType([t.StructField(field.name, _column_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, t.DecimalType | t.FloatType):  # numbers with a fraction, of variants
        return t.DoubleType()
    return kind if isinstance(kind, t.BooleanType | t.LongType | t.DoubleType) else t.StringType()


def _field_count(kind: t.DataType) -> int:
    if isinstance(kind, t.ArrayType):
        return _field_count(kind.elementType)
    return sum(_field_count(field.dataType) for field in kind.fields) if isinstance(kind, t.StructType) else 1

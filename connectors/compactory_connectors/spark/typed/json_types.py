"""The columns of JSON values: for each field a type that holds all of its values. Pure; types are Arrow's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from ..identifier import quoted

__all__ = ["as_json", "conform", "fields_of", "infer", "known", "merge", "merged", "nameable", "settled", "spelt"]

_INT64: Final = range(-(1 << 63), 1 << 63)
_DEEPEST: Final = 32  # levels; neither Spark nor Python go on for ever, and a value must not end an export
_PLAIN: Final = (pa.bool_(), pa.int64(), pa.float64(), pa.string())


def infer(value: Any, levels: int = _DEEPEST) -> pa.DataType:
    """The narrowest type of a value. Whole numbers beyond 64 bits are doubles, as they are to most readers of JSON.

    Raises ValueError for objects and lists in more than so many ``levels``.
    """
    if not levels:
        raise ValueError(f"objects and lists are within each other in more than {_DEEPEST} levels")
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, list):
        found = pa.null()
        for item in value:
            found = merge(found, infer(item, levels - 1))
        return pa.list_(found)
    if isinstance(value, dict):
        return pa.struct([(name, infer(item, levels - 1)) for name, item in value.items()])
    return pa.string()


def merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type for values of both; text where nothing else holds them."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merge(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(list(merged(fields_of(one), fields_of(other)).items()))
    return pa.string()


def merged(one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The fields of both, in the order in which they came."""
    return {name: merge(one.get(name, pa.null()), other.get(name, pa.null())) for name in {**one, **other}}


def settled(kind: pa.DataType) -> pa.DataType:
    """The type of a column: text for what was only null, and for objects that are empty or not `nameable`."""
    if pa.types.is_list(kind):
        return pa.list_(settled(kind.value_type))
    if pa.types.is_struct(kind) and kind.num_fields and _distinct(fields_of(kind)):
        return pa.struct([(name, settled(item)) for name, item in fields_of(kind).items()])
    return kind if kind in _PLAIN else pa.string()


def nameable(kind: pa.DataType) -> bool:
    """Whether Spark can name all fields within: none is empty, and case alone tells no two apart."""
    if pa.types.is_list(kind):
        return nameable(kind.value_type)
    if not pa.types.is_struct(kind):
        return True
    fields = fields_of(kind)
    return _distinct(fields) and all(map(nameable, fields.values()))


def _distinct(names: Collection[str]) -> bool:
    return "" not in names and len({name.lower() for name in names}) == len(names)


def known(kind: pa.DataType) -> pa.DataType | None:
    """The type without what is only known to be null so far; None where nothing is left of it."""
    if pa.types.is_list(kind):
        inner = known(kind.value_type)
        return pa.list_(inner) if inner is not None else None
    if pa.types.is_struct(kind):
        items = {name: known(item) for name, item in fields_of(kind).items()}
        kept = [(name, item) for name, item in items.items() if item is not None]
        return pa.struct(kept) if kept else None
    return None if pa.types.is_null(kind) else kind


def as_json(kind: pa.DataType, levels: int = _DEEPEST) -> pa.DataType:
    """The type that a reader has found, without times: in JSON these are text. Raises ValueError as `infer` does."""
    if not levels:
        raise ValueError("too many levels")
    if pa.types.is_list(kind):
        return pa.list_(as_json(kind.value_type, levels - 1))
    if pa.types.is_struct(kind):
        return pa.struct([(name, as_json(item, levels - 1)) for name, item in fields_of(kind).items()])
    return kind if kind in _PLAIN or pa.types.is_null(kind) else pa.string()


def conform(value: Any, kind: pa.DataType) -> Any:
    """The value as one of this type; null is of each, and text takes everything, as JSON. Raises ValueError."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if pa.types.is_list(kind) and isinstance(value, list):
        return [conform(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {name: conform(value.get(name), item) for name, item in fields_of(kind).items()}
    if pa.types.is_nested(kind) or merge(kind, infer(value)) != kind:
        raise ValueError(str(kind))
    return float(value) if pa.types.is_float64(kind) else value


def spelt(kind: t.DataType) -> str:
    """A type of Spark's, as Spark reads it: its ``simpleString`` does not quote the names within."""
    if isinstance(kind, t.ArrayType):
        return f"array<{spelt(kind.elementType)}>"
    if isinstance(kind, t.StructType):
        return f"struct<{','.join(f'{quoted(item.name)}:{spelt(item.dataType)}' for item in kind.fields)}>"
    return kind.simpleString()


def fields_of(kind: pa.DataType) -> dict[str, pa.DataType]:
    """The fields of a struct."""
    return {item.name: item.type for item in (kind.field(place) for place in range(kind.num_fields))}

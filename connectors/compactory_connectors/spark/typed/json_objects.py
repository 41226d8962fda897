"""Rows of a DataFrame → JSON objects, as entries have them. Pure.

Decimals and bytes become text, in all digits and in base64; dates and times ISO 8601, times with a zone in UTC.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import types as t

from compactory.errors import ConfigError, WriteRefused

from .typed_rows import ERROR, OPERATION

__all__ = ["KEY", "JsonRow", "JsonRows"]

KEY: Final = "_key"
_NOT_WRITTEN: Final = ("_value", ERROR)
_OF_RECORDS: Final = ("_topic", "_partition", "_offset", "_timestamp")
"""Columns of a read that say where a record was; a write ignores them."""

ToJson: TypeAlias = Callable[[Any], Any]
"""Converts a value, as Arrow gives it to Python, into what JSON has for it."""


class JsonRow(NamedTuple):
    """A row: its key if it has one, whether it deletes the key, its value."""

    key: str | None
    is_delete: bool
    value: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRows:
    """Converts rows of one schema. Travels to the tasks."""

    fields: Mapping[str, ToJson]
    has_key: bool
    has_operation: bool
    keeps_nulls: bool

    @classmethod
    def of(cls, schema: t.StructType, *, keeps_nulls: bool, json_columns: Iterable[str] = ()) -> JsonRows:
        """Return the converter of a schema; ``json_columns`` hold JSON as text.

        Raises ConfigError with every problem.
        """
        types = {column.name: column.dataType for column in schema.fields}
        problems = [
            f"column {name} must be of type string: cast it"
            for name in (KEY, OPERATION)
            if name in types and not isinstance(types[name], t.StringType)
        ]
        problems += [f"column {name} can't be written: drop it" for name in _NOT_WRITTEN if name in types]
        if OPERATION in types and KEY not in types:
            problems.append(f"column {OPERATION} needs column {KEY}: a deletion needs a key")
        fields: dict[str, ToJson] = {}
        for name, kind in types.items():
            if name in (KEY, OPERATION, *_NOT_WRITTEN, *_OF_RECORDS):
                continue
            try:
                fields[name] = _document if name in json_columns else _converter(kind, keeps_nulls)
            except ConfigError as error:
                problems.append(f"column {name}: {error}")
        if problems:
            raise ConfigError(problems)
        return cls(fields=fields, has_key=KEY in types, has_operation=OPERATION in types, keeps_nulls=keeps_nulls)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[JsonRow]:
        """Yield the rows. Raises WriteRefused for a null key, an unknown operation, and text that is not JSON."""
        for batch in batches:
            nulls = [None] * batch.num_rows
            keys = batch.column(KEY).to_pylist() if self.has_key else nulls
            operations = batch.column(OPERATION).to_pylist() if self.has_operation else nulls
            columns = [map(convert, batch.column(name).to_pylist()) for name, convert in self.fields.items()]
            values = zip(*columns, strict=True) if columns else [()] * batch.num_rows
            for key, operation, row in zip(keys, operations, values, strict=True):
                if self.has_key and key is None:
                    raise WriteRefused(f"column {KEY} is null in a row: filter such rows out")
                if operation not in (None, "put", "delete"):
                    raise WriteRefused(f"{key!r}: column {OPERATION} must be put or delete, not {operation!r}")
                yield JsonRow(key, operation == "delete", self._value(row))

    def _value(self, row: tuple[Any, ...]) -> dict[str, Any]:
        pairs = zip(self.fields, row, strict=True)
        return {name: value for name, value in pairs if self.keeps_nulls or value is not None}


def _document(text: str | None) -> Any:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise WriteRefused(f"a json column holds text that is not JSON: {error}") from None


def _converter(kind: t.DataType, keeps_nulls: bool) -> ToJson:
    """Return the converter of a type; None stays None. Raises ConfigError for a type that JSON has no form of."""
    convert = _value_converter(kind, keeps_nulls)
    return lambda value: None if value is None else convert(value)


def _value_converter(kind: t.DataType, keeps_nulls: bool) -> ToJson:
    match kind:
        case t.StringType() | t.BooleanType() | t.IntegralType() | t.DoubleType():
            return lambda value: value
        case t.FloatType():  # the number with the shortest digits, not the nearest one in binary
            return lambda value: float(str(np.float32(value)))
        case t.DecimalType():
            return lambda value: f"{value:f}"
        case t.BinaryType():
            return lambda value: b64encode(value).decode()
        case t.TimestampType():
            return lambda value: value.astimezone(UTC).isoformat()
        case t.DateType() | t.TimestampNTZType():
            return lambda value: value.isoformat()
        case t.ArrayType():
            item = _converter(kind.elementType, keeps_nulls)
            return lambda values: [item(value) for value in values]
        case t.MapType(keyType=t.StringType()):
            item = _converter(kind.valueType, keeps_nulls)
            return lambda pairs: {key: item(value) for key, value in pairs}
        case t.StructType():
            fields = {field.name: _converter(field.dataType, keeps_nulls) for field in kind.fields}
            return lambda row: {
                name: convert(row[name]) for name, convert in fields.items() if keeps_nulls or row[name] is not None
            }
    raise ConfigError(f"JSON has nothing for type {kind.simpleString()}: cast it to string")

"""Values of Spark's types, as Arrow hands them to Python → what JSON has for them. Pure.

Decimals and bytes become text, in all digits and in base64; dates and times ISO 8601, of a zone in UTC.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC
from typing import Any, TypeAlias

import numpy as np
from pyspark.sql import types as t

from compactory.errors import ConfigError

__all__ = ["Json", "json_of"]

Json: TypeAlias = Callable[[Any], Any]


def json_of(kind: t.DataType, *, nulls: bool) -> Json:
    """The function of values of a type; None stays None. ``nulls``: structs have fields that are null.

    Raises ConfigError for a type that JSON has no form of.
    """
    write = _writer(kind, nulls)
    return lambda value: None if value is None else write(value)


def _writer(kind: t.DataType, nulls: bool) -> Json:
    match kind:
        case t.StringType() | t.BooleanType() | t.IntegralType() | t.DoubleType():
            return lambda value: value
        case t.FloatType():  # the number that its shortest digits are, not the nearest one in binary
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
            item = json_of(kind.elementType, nulls=nulls)
            return lambda values: [item(value) for value in values]
        case t.MapType(keyType=t.StringType()):
            item = json_of(kind.valueType, nulls=nulls)
            return lambda pairs: {key: item(value) for key, value in pairs}
        case t.StructType():
            fields = {field.name: json_of(field.dataType, nulls=nulls) for field in kind.fields}
            return lambda row: {
                name: write(row[name]) for name, write in fields.items() if nulls or row[name] is not None
            }
    raise ConfigError(f"JSON has nothing for type {kind.simpleString()}: cast it to string")

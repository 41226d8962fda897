"""Values of JSON, or of a schema registry, → values of Spark's types. Pure.

Numbers in columns of dates and times are Connect's: days and milliseconds since 1970. A text without a zone is UTC.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from pyspark.sql import types as t

from compactory.errors import ConfigError

from ..identifier import quoted

__all__ = ["Convert", "converter_of", "type_text"]

Convert = Callable[[Any], Any]
"""The function from a value to one of a type. Raises ValueError, TypeError or ArithmeticError for one that can't be."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BITS: Final = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}


def converter_of(name: str, kind: t.DataType, *, base64: bool | None = None) -> Convert:
    """Return the function for the column ``name``; null stays null.

    ``base64``: decimals are texts of Base64. None: nobody has said, so a text that may be either fits no decimal.
    Raises ConfigError for a type that JSON has no values of.
    """
    convert = _converter(name, kind, base64)
    return lambda value: None if value is None else convert(value)


def _converter(name: str, kind: t.DataType, base64: bool | None) -> Convert:
    match kind:
        case t.ArrayType():
            item_of = converter_of(name, kind.elementType, base64=base64)
            return lambda value: [item_of(item) for item in _checked(value, list)]
        case t.MapType(keyType=t.StringType()):
            member_of = converter_of(name, kind.valueType, base64=base64)
            return lambda value: [(key, member_of(item)) for key, item in _checked(value, dict).items()]
        case t.StructType():
            fields = {field.name: converter_of(name, field.dataType, base64=base64) for field in kind.fields}
            return lambda value: {field: make(_checked(value, dict).get(field)) for field, make in fields.items()}
        case t.DecimalType():
            return lambda value: _decimal(value, kind, base64)
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            limit = 1 << (_BITS[type(kind)] - 1)
            return lambda value: _whole_number(value, limit)
    plain: dict[type[t.DataType], Convert] = {
        t.BooleanType: lambda value: _checked(value, bool),
        t.StringType: lambda value: value if isinstance(value, str) else msgspec.json.encode(value).decode(),
        t.BinaryType: lambda value: value if isinstance(value, bytes) else b64decode(value, validate=True),
        t.FloatType: _number,
        t.DoubleType: _number,
        t.DateType: _date,
        t.TimestampType: _timestamp,
        t.TimestampNTZType: lambda value: _timestamp(value).replace(tzinfo=None),
    }
    if type(kind) not in plain:
        raise ConfigError(f"column {name!r}: JSON has nothing like {kind.simpleString()}; take string")
    return plain[type(kind)]


def type_text(kind: t.DataType) -> str:
    """Return the text of a type that Spark reads as this type; ``simpleString`` does not quote inner names."""
    if isinstance(kind, t.ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, t.StructType):
        return f"struct<{','.join(f'{quoted(field.name)}:{type_text(field.dataType)}' for field in kind.fields)}>"
    return kind.simpleString()


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"no {kind.__name__}")
    return value


def _whole_number(value: Any, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
        raise ValueError("no such whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("no number")
    return float(value)


def _timestamp(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return _EPOCH + timedelta(milliseconds=_number(value))


def _date(value: Any) -> date:
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        return date.fromisoformat(value)
    return _EPOCH.date() + timedelta(days=_whole_number(value, 1 << 31))


def _decimal(value: Any, kind: t.DecimalType, base64: bool | None) -> Decimal:
    number = _exact(value, kind.scale, base64)
    sign, digits, exponent = number.as_tuple()
    del sign
    if not isinstance(exponent, int):
        raise ValueError("no finite number")
    scale = max(0, -exponent) if any(digits) else 0
    if scale > kind.scale and any(digits[kind.scale - scale :]):
        raise ValueError("more decimals than the column has")
    if len(digits) + exponent > kind.precision - kind.scale and any(digits):
        raise ValueError("more digits than the column has")
    return number


def _exact(value: Any, scale: int, base64: bool | None) -> Decimal:
    if isinstance(value, str):
        if base64:
            unscaled = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
            return Decimal(f"{unscaled}E-{scale}")  # `scaleb` would round to 28 digits
        if base64 is None and len(value) % 4 == 0 and value.isascii() and value.lstrip("+").isalnum():
            raise ValueError("a number, or Base64")
        return Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("no number")
    return value if isinstance(value, Decimal) else Decimal(str(value))

"""Columns as JSON has them → columns of Spark's types. Pure.

Numbers in columns of dates and times are Connect's: days and milliseconds since 1970. A text without a zone is UTC.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

__all__ = ["cast", "takes_numbers"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def takes_numbers(kind: pa.DataType) -> bool:
    """Whether JSON has values of this type as texts or as numbers."""
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def cast(column: pa.Array, kind: pa.DataType, *, base64: bool | None) -> tuple[pa.Array, list[int]]:
    """The column in this type, and the rows whose value does not fit, which are null.

    ``base64``: decimals are texts of Base64; None: nobody has said, so a text that may be either fits no decimal.
    """
    if column.type == kind:
        return column, []
    try:
        return _as_a_whole(column, kind, base64=base64), []
    except (pa.ArrowException, ValueError, ArithmeticError):
        return _each(column, kind, base64=base64)


def _as_a_whole(column: pa.Array, kind: pa.DataType, *, base64: bool | None) -> pa.Array:
    if pa.types.is_nested(kind) or (base64 and pa.types.is_decimal(kind)):
        raise ValueError("value by value")
    if pa.types.is_decimal(kind):
        if base64 is None and pa.types.is_string(column.type) and any(map(_is_ambiguous, column.to_pylist())):
            raise ValueError("value by value")
        return column.cast(pa.string()).cast(kind)  # from a number it would round
    if pa.types.is_integer(column.type) and pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ms", kind.tz)).cast(kind)
    if pa.types.is_integer(column.type) and pa.types.is_date(kind):
        return column.cast(pa.int32()).cast(kind)
    return column.cast(kind)


def _each(column: pa.Array, kind: pa.DataType, *, base64: bool | None) -> tuple[pa.Array, list[int]]:
    convert = _converter(kind, base64=base64)
    found: list[Any] = []
    unfit: list[int] = []
    for row, value in enumerate(column.to_pylist()):
        try:
            found.append(convert(value))
            pa.scalar(found[row], kind)  # to see that it fits: an array of such scalars can't have null lists (24)
        except (pa.ArrowException, ValueError, ArithmeticError, TypeError):
            found[row:] = [None]
            unfit.append(row)
    return pa.array(found, kind), unfit


def _converter(kind: pa.DataType, *, base64: bool | None) -> Callable[[Any], Any]:
    """The function of a value of this type in JSON; raises ValueError, TypeError or ArithmeticError."""
    if pa.types.is_list(kind):
        inner = _converter(kind.value_type, base64=base64)
        return lambda value: None if value is None else [inner(item) for item in value]
    if pa.types.is_struct(kind):
        members = {item.name: _converter(item.type, base64=base64) for item in kind}
        return lambda value: None if value is None else {name: make(value[name]) for name, make in members.items()}
    if pa.types.is_timestamp(kind):
        return _nullable(lambda value: _zoned(_instant(value), kind))
    if pa.types.is_date(kind):
        return _nullable(_date)
    if pa.types.is_decimal(kind):
        return _nullable(lambda value: _decimal(value, kind.scale, base64=base64))
    return lambda value: value


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _instant(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            value = int(value)
    return _EPOCH + timedelta(milliseconds=value)


def _zoned(value: datetime, kind: pa.DataType) -> datetime:
    """The moment, or where the column has no zone the time as it is written."""
    if kind.tz is None:
        return value.replace(tzinfo=None)
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _date(value: Any) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            value = int(value)
    return _EPOCH.date() + timedelta(days=value)


def _is_ambiguous(value: Any) -> bool:
    """Return True for a text that is a number and Base64 as well, such as 1008."""
    return isinstance(value, str) and len(value) % 4 == 0 and value.isascii() and value.lstrip("+").isalnum()


def _decimal(value: Any, scale: int, *, base64: bool | None) -> Decimal:
    if base64:
        return _unscaled(value, scale)
    if base64 is None and _is_ambiguous(value):
        raise ValueError("a number, or Base64")
    return Decimal(str(value))


def _unscaled(value: str, scale: int) -> Decimal:
    number = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    return Decimal(f"{number}E-{scale}")  # `scaleb` would round to 28 digits

"""Values from one primitive type to another, as ``Cast.castValueToType`` of Kafka Connect does it. Pure functions."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ...javatext.date_format import DateFormat
from ...javatext.java_calendar import MILLIS_PER_DAY
from ...javatext.java_number import double_text_of, float_text_of
from ..record import Java, RowError
from ..schema import DATE, TIME, TIMESTAMP, Schema, Type

__all__ = ["caster", "float32", "parse_double", "parse_float"]

_INTEGERS = {Java.BYTE, Java.SHORT, Java.INTEGER, Java.LONG}
_FLOATS = {Java.FLOAT, Java.DOUBLE}
_DATES = {Java.SQL_DATE, Java.SQL_TIME, Java.SQL_TIMESTAMP, Java.DATE}
_BITS = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
_SOURCES = {Java.BOOLEAN, Java.STRING, Java.DECIMAL, Java.BYTES, *_INTEGERS, *_FLOATS, *_DATES}

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|NaN|Infinity)", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)
_BLANKS = "".join(map(chr, range(33)))
"""What ``String.trim`` takes off."""

_OF_TIME = DateFormat("HH:mm:ss.SSS'Z'")
_OF_DATE = DateFormat("yyyy-MM-dd")
_OF_TIMESTAMP = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def caster(java: Java, schema: Schema, target: Type) -> Callable[[Any], Any]:
    """The function from a value of ``java``, which is not null, to one of ``target``.

    The function raises RowError for a value that Kafka Connect fails on. Raises ValueError, with a text that follows a
    field's name, where it fails on every value.
    """
    if java not in _SOURCES:
        raise ValueError(f"is of class {java.value}, which can't be cast")
    if target is Type.STRING:
        return _texts(java)
    if java is Java.BYTES:
        raise ValueError("holds bytes, which can be cast to string only")
    if java is Java.STRING:
        return _PARSERS[target]
    if java in _DATES:
        number, narrow = _number_of(java, schema), _narrow(int, target)
        return lambda value: narrow(number(value))
    kind = int if java in _INTEGERS or java is Java.BOOLEAN else float if java in _FLOATS else Decimal
    return _narrow(kind, target)


def _narrow(kind: type, target: Type) -> Callable[[Any], Any]:
    if target is Type.BOOLEAN:
        long = _narrow(kind, Type.INT64)
        return lambda value: long(value) != 0
    if target is Type.FLOAT64:
        return float
    if target is Type.FLOAT32:
        return float32
    bits = _BITS[target]
    if kind is float:
        return lambda value: _wrapped(_saturated(value, max(bits, 32)), bits)
    return lambda value: _wrapped(int(value), bits)


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _saturated(value: float, bits: int) -> int:
    """``value`` cut off toward zero; the nearest end of the range where it lies outside, and 0 for NaN."""
    if value != value:
        return 0
    most = (1 << (bits - 1)) - 1
    if value >= most:
        return most
    return -most - 1 if value <= -most - 1 else int(value)


def float32(value: float | Decimal) -> float:
    """The float nearest to an exact number, ties to even: rounding to a double first may miss it."""
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):
        return value
    rough = float(value)
    if rough == 0.0:
        return rough
    exact = abs(Fraction(value))
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    if exact < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    size = round(exact / quantum) * quantum
    result = float("inf") if size >= 1 << 128 else float(size)
    return -result if rough < 0 else result


def _out_of_range(what: str) -> RowError:
    return RowError(f"Cast: the text is not {what}, or out of its range")


def _whole(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # Java takes the digits of any script, but of 16 bits only
        number = int(text) if _WHOLE.fullmatch(text) and max(text) <= "\uffff" else None
        if number is None or _wrapped(number, bits) != number:
            raise _out_of_range(f"a whole number of {bits} bits")
        return number

    return parse


def parse_double(text: str) -> float:
    """``Double.parseDouble``. Raises RowError."""
    text = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    raise _out_of_range("a number")


def parse_float(text: str) -> float:
    """``Float.parseFloat``. Raises RowError."""
    rough = parse_double(text)
    if rough in {0.0, float("inf"), float("-inf")} or rough != rough:
        return rough
    text = text.strip(_BLANKS).rstrip("fFdD") if "x" not in text.lower() else ""
    return float32(Decimal(text)) if text else float32(rough)


_PARSERS: Mapping[Type, Callable[[str], Any]] = {
    **{target: _whole(bits) for target, bits in _BITS.items()},
    Type.FLOAT32: parse_float,
    Type.FLOAT64: parse_double,
    Type.BOOLEAN: lambda text: text.lower() == "true" if text.isascii() else False,
}


def _number_of(java: Java, schema: Schema) -> Callable[[int], int]:
    """A date as the number that its logical type stands for."""
    if schema.name not in {DATE, TIME, TIMESTAMP}:
        raise ValueError(f"is of class {java.value} without its logical type, which can't be cast to a number")
    checked = _as_it_is if schema.name == TIMESTAMP else _days if schema.name == DATE else _time_of_day
    if java is Java.SQL_TIMESTAMP:
        return lambda micros: checked(micros // 1000)
    return checked


def _as_it_is(millis: int) -> int:
    return millis


def _days(millis: int) -> int:
    days, rest = divmod(millis, MILLIS_PER_DAY)
    if rest:
        raise RowError("Connect's Date takes whole days only")
    return _wrapped(days, 32)


def _time_of_day(millis: int) -> int:
    if not 0 <= millis <= MILLIS_PER_DAY:
        raise RowError("Connect's Time takes times of one day only; in UTC this one falls on another")
    return millis


def _texts(java: Java) -> Callable[[Any], str]:
    if java is Java.BOOLEAN:
        return lambda value: "true" if value else "false"
    if java is Java.FLOAT:
        return lambda value: float_text_of(value).decode()
    if java is Java.DOUBLE:
        return lambda value: double_text_of(value).decode()
    if java is Java.BYTES:
        return lambda value: b64encode(value).decode()
    if java is Java.SQL_TIMESTAMP:
        return lambda micros: _date_text(micros // 1000)
    return _date_text if java in _DATES else str


def _date_text(millis: int) -> str:
    """``Values.dateFormatFor``: what lies before the second day of 1970 counts as a time."""
    if millis < MILLIS_PER_DAY:
        return _OF_TIME.format(millis)
    return (_OF_TIMESTAMP if millis % MILLIS_PER_DAY else _OF_DATE).format(millis)

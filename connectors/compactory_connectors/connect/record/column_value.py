"""Postgres text format → the Connect value that the JDBC source connector makes of it. Pure functions of bytes.

The comments name where pgjdbc 42.7 decides; the session's formats are those that ``server.connect`` sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Context, Decimal, Inexact

from ..javatext.java_calendar import MILLIS_PER_DAY, day_number
from ..javatext.java_number import float32_of
from .record import RowError

__all__ = [
    "INFINITIES",
    "decode_byte_of_bits",
    "decode_bytea",
    "decode_date",
    "decode_float32",
    "decode_money",
    "decode_time",
    "decode_timestamp",
    "decode_timetz",
    "integer_decoder",
    "is_plain",
    "numeric_decoder",
    "unscaled",
]

INFINITIES = {b"infinity": 9_223_372_036_825_200_000, b"-infinity": -9_223_372_036_832_400_000}
"""Milliseconds of ``PGStatement.DATE_POSITIVE_INFINITY`` and ``DATE_NEGATIVE_INFINITY``."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # both sides are naive UTC
_DATE = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)")
_TIME = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_OFFSET = re.compile(rb"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")
_TIMESTAMP = re.compile(_DATE.pattern + rb" " + _TIME.pattern + rb"(?:\+00)?( BC)?")
_PLAIN_DATE = re.compile(_DATE.pattern + rb"( BC)?")
_TIMETZ = re.compile(_TIME.pattern + _OFFSET.pattern)
_GREGORIAN = b"1583"
_DIGITS = b"0123456789"
_PLAIN_DIGITS = 6
_ENDS = {bytes([digit]) for digit in _DIGITS}
_EXACT = Context(prec=200_000, traps=[Inexact])
"""More digits than NUMERIC can have: 131,072 before the point and 16,383 after it."""


def decode_byte_of_bits(raw: bytes) -> int:
    """Return the number of ``bit(2)`` to ``bit(8)``: pgjdbc's ``getByte`` reads the bits as a decimal number."""
    if (number := int(raw)) > 127:
        raise RowError("these bits, read as a decimal number, don't fit into a byte")
    return number


def decode_bytea(raw: bytes) -> bytes:
    """Return the bytes of the hexadecimal format: a backslash, ``x``, then two digits a byte."""
    return bytes.fromhex(raw[2:].decode())


def decode_float32(raw: bytes) -> float:
    """Return the float32 nearest to the text."""
    return float32_of(raw.decode())


def decode_money(raw: bytes) -> float:
    """Return the number of ``$1,234.50``. pgjdbc fails on the comma; this function does not."""
    return float(raw.replace(b"$", b"").replace(b",", b""))


def integer_decoder(bits: int) -> Callable[[bytes], int]:
    """Return the decoder of a NUMERIC as an integer: cut off at the point, as ``ResultSet.getByte`` does."""
    limit = 1 << bits - 1

    def decode(raw: bytes) -> int:
        try:
            number = int(raw) if raw.isdigit() else int(Decimal(raw.decode()))
        except (ValueError, OverflowError):
            raise RowError("NaN and Infinity are not integers") from None
        if not -limit <= number < limit:
            raise RowError(f"the number does not fit into {bits} bits")
        return number

    return decode


def numeric_decoder(scale: int) -> Callable[[bytes], Decimal]:
    """Return the decoder of decimals with exactly ``scale`` digits after the point, as ``ResultSet.getBigDecimal``."""
    exponent, zero = Decimal((0, (1,), -scale)), Decimal((0, (0,), -scale))  # BigDecimal has no negative zero

    def decode(raw: bytes) -> Decimal:
        number = Decimal(raw.decode())
        if not number.is_finite():
            raise RowError("NaN and Infinity are not values of BigDecimal")
        try:
            return number.quantize(exponent, None, _EXACT) or zero
        except Inexact:
            raise RowError(f"the number has more than {scale} digits after the point") from None

    return decode


def unscaled(scale: int) -> Callable[[bytes], int | None]:
    """Return the reader of unscaled values. It gives None for a text without just ``scale`` digits after the point."""

    def read(raw: bytes) -> int | None:
        whole, _, fraction = raw.partition(b".")
        if len(fraction) != scale:
            return None
        try:
            return int(whole + fraction)
        except ValueError:
            return None

    return read


def is_plain(raw: bytes, scale: int) -> bool:
    """Return True if Postgres' text is ``BigDecimal.toString`` of the value with ``scale`` digits after the point."""
    if scale > _PLAIN_DIGITS or raw[-1:] not in _ENDS:  # a longer fraction may come with an exponent
        return False
    point = raw.find(b".")
    return len(raw) - point - 1 == scale if point >= 0 else scale == 0


def decode_timestamp(raw: bytes) -> int:
    """Return microseconds since the epoch; timestamptz comes in UTC, with ``+00``."""
    if raw > _GREGORIAN and raw[-1] in _DIGITS:  # no BC, no infinity
        try:
            since_epoch = datetime.fromisoformat(raw.decode().removesuffix("+00")) - _EPOCH
        except ValueError:
            return _any_timestamp(raw)
        return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds
    return _any_timestamp(raw)


def _any_timestamp(raw: bytes) -> int:
    """Return the same for any year, BC and infinities: ``TimestampUtils.toTimestamp`` with a UTC calendar."""
    if raw in INFINITIES:
        return INFINITIES[raw] * 1000
    match = _TIMESTAMP.fullmatch(raw)
    if match is None:
        raise RowError("not a timestamp in ISO format")
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    days = day_number(1 - year if match[8] else year, month, day)
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + _micros(match[7])


def _micros(fraction: bytes | None) -> int:
    return int(fraction.ljust(6, b"0")) if fraction else 0


def decode_date(raw: bytes) -> int:
    """Return milliseconds since the epoch: a whole number of days, except for infinities."""
    match = _PLAIN_DATE.fullmatch(raw)
    if match is None:
        if raw in INFINITIES:
            return INFINITIES[raw]
        raise RowError("not a date in ISO format")
    year, month, day = map(int, match.group(1, 2, 3))
    return day_number(1 - year if match[4] else year, month, day) * MILLIS_PER_DAY


def decode_time(raw: bytes) -> int:
    """Return milliseconds since midnight; ``24:00:00`` is 86,400,000. Microseconds are cut off."""
    match = _TIME.fullmatch(raw)
    if match is None:
        raise RowError("not a time in ISO format")
    return _millis_of_day(match)


def decode_timetz(raw: bytes) -> int:
    """Return milliseconds since midnight in UTC: below 0 or above 86,400,000 where that is another day."""
    match = _TIMETZ.fullmatch(raw)
    if match is None:
        raise RowError("not a time with a time zone in ISO format")
    hours, minutes, seconds = (int(part or 0) for part in match.group(6, 7, 8))
    offset = (hours * 3600 + minutes * 60 + seconds) * (-1000 if match[5] == b"-" else 1000)
    return _millis_of_day(match) - offset


def _millis_of_day(match: re.Match[bytes]) -> int:
    hour, minute, second = map(int, match.group(1, 2, 3))
    return (hour * 60 + minute) * 60_000 + second * 1000 + _micros(match[4]) // 1000

"""DATE, TIME and TIMESTAMP columns under ``db.timezone`` and ``timestamp.granularity``.

Each function makes a decoder of raw bytes. Source: ``DateTimeUtils`` of the connector 10.9, oddities included: the
units of ``micros_long`` and ``nanos_long`` are counted from the second towards 1970, so that moments before 1970 with a
fraction come out a second late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compactory_connectors.connect.javatext.java_calendar import proleptic_date
from compactory_connectors.connect.javatext.java_number import clamped, divided, wrapped
from compactory_connectors.connect.javatext.java_zone import JavaZone, java_zone
from compactory_connectors.connect.record.column_value import INFINITIES, decode_time, decode_timestamp
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.connect.record.schema import Schema, Type

from ..config.connector import ColumnOptions, Granularity

__all__ = ["granular", "time_decoder", "timestamp_decoder"]

_DAY = 86_400
_MICROS = 1_000_000
_NANOS = 1_000_000_000


def time_decoder(options: ColumnOptions) -> Callable[[bytes], int]:
    """Return the decoder to milliseconds since midnight in UTC, of a time on the clocks of the zone on 1970-01-01."""
    zone = java_zone(options.zone)
    if zone is None:
        return decode_time

    def decode(raw: bytes) -> int:
        millis = decode_time(raw)
        return millis - zone.wall_offset(millis // 1000) * 1000

    return decode


def timestamp_decoder(options: ColumnOptions, *, zoned: bool) -> Callable[[bytes], int]:
    """Return the decoder to microseconds since the epoch. ``zoned``: the text is in UTC."""
    zone = java_zone(options.zone)
    return decode_timestamp if zoned or zone is None else _local_decoder(zone)


def _local_decoder(zone: JavaZone) -> Callable[[bytes], int]:
    def decode(raw: bytes) -> int:
        micros = decode_timestamp(raw)
        return micros if raw in INFINITIES else micros - _offset(zone.wall_offset, micros // _MICROS) * _MICROS

    return decode


def _offset(offset_at: Callable[[int], int], seconds: int) -> int:
    try:
        return offset_at(seconds)
    except ValueError as error:
        raise RowError(f"the timestamp {error}") from None


def granular(options: ColumnOptions) -> tuple[Schema, Callable[[int], Any]]:
    """Return the schema and value that microseconds become under a granularity that is not the default."""
    granularity = options.granularity
    if granularity in _NUMBERS:
        number = _NUMBERS[granularity]
        if granularity.value.endswith("long"):
            return Schema(type=Type.INT64), number
        return Schema(type=Type.STRING), lambda micros: str(number(micros))
    zeros = "" if granularity is Granularity.MICROS_ISO_DATETIME_STRING else "000"
    return Schema(type=Type.STRING), _iso_writer(java_zone(options.zone), zeros)


def _counted(unit: int, *, bounded: bool = True) -> Callable[[int], int]:
    """Return the counter of units of so many in a second. ``bounded``: as ``TimeUnit`` converts and Java adds longs."""

    def count(micros: int) -> int:
        whole, fraction = divided(micros // 1000, 1000) * unit, micros % _MICROS * (unit // _MICROS)
        return wrapped(clamped(whole) + fraction, 64) if bounded else whole + fraction

    return count


_NUMBERS: Mapping[Granularity, Callable[[int], int]] = {
    Granularity.MICROS_LONG: _counted(_MICROS),
    Granularity.MICROS_STRING: _counted(_MICROS),
    Granularity.NANOS_LONG: _counted(_NANOS),
    Granularity.NANOS_STRING: _counted(_NANOS, bounded=False),
}


def _iso_writer(zone: JavaZone | None, zeros: str) -> Callable[[int], str]:
    """Return the writer of ISO texts as ``java.time`` has them: years of an era, with a plus above 9999."""

    def text(micros: int) -> str:
        seconds, fraction = divmod(micros, _MICROS)
        days, second = divmod(seconds + (_offset(zone.offset, seconds) if zone else 0), _DAY)
        year, month, day = proleptic_date(days)
        era = year if year > 0 else 1 - year
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        date = f"{'+' if era > 9999 else ''}{era:04d}-{month:02d}-{day:02d}"
        return f"{date}T{clock}.{fraction:06d}{zeros}"

    return text

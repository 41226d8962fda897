"""Time zones as Java reads them: ``java.time.ZoneId`` of ``db.timezone``, and the ``java.util.TimeZone`` made of it.

The history of a zone is that of Python's ``zoneinfo``: the system's tzdata, else the package of that name. Of a zone
with a history the years 1900 to 9999 are supported.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ..setting import nearest

__all__ = ["JavaZone", "java_zone", "read_zone", "zone_info"]

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # the caller says whose time it is
_FIRST = datetime(1900, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"(?:GMT)?([+-])(\d{1,2})(?::?(\d\d))?", re.ASCII)
_PREFIXED = re.compile(r"(?:UTC|UT)[+-].*")
_UTC_NAMES = {"UTC", "Z", "GMT", "UT"}

_SHORT = """
EST=-05:00 HST=-10:00 MST=-07:00 ACT=Australia/Darwin AET=Australia/Sydney AGT=America/Argentina/Buenos_Aires
ART=Africa/Cairo AST=America/Anchorage BET=America/Sao_Paulo BST=Asia/Dhaka CAT=Africa/Harare CNT=America/St_Johns
CST=America/Chicago CTT=Asia/Shanghai EAT=Africa/Addis_Ababa ECT=Europe/Paris IET=America/Indiana/Indianapolis
IST=Asia/Kolkata JST=Asia/Tokyo MIT=Pacific/Apia NET=Asia/Yerevan NST=Pacific/Auckland PLT=Asia/Karachi
PNT=America/Phoenix PRT=America/Puerto_Rico PST=America/Los_Angeles SST=Pacific/Guadalcanal VST=Asia/Ho_Chi_Minh
"""
_SHORT_IDS = {name: zone for name, _, zone in (pair.partition("=") for pair in _SHORT.split())}
"""``ZoneId.SHORT_IDS``, which the connector falls back to."""


class JavaZone:
    """The offsets of a time zone. Arguments and results are whole seconds. Immutable and safe to share.

    The methods raise ValueError for a time out of the years 1900 to 9999, unless the offset is always the same.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._always = zone.utcoffset(None)

    def wall_offset(self, wall: int) -> int:
        """Return the offset at a wall time, in seconds since 1970-01-01 on the wall's clock, as ``TimeZone`` reads it.

        A wall time that a change of the clocks skips is read with the offset before the change; of one that comes
        twice the later moment counts.
        """
        return min(self._offset(wall, self._zone, fold) for fold in (0, 1))

    def offset(self, seconds: int) -> int:
        """Return the offset at a moment, in seconds since 1970-01-01T00:00Z."""
        return self._offset(seconds, UTC)

    def _offset(self, seconds: int, clock: tzinfo, fold: int = 0) -> int:
        if self._always is not None:
            return int(self._always.total_seconds())
        try:
            moment = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=clock, fold=fold).astimezone(self._zone)
        except OverflowError:
            moment = None
        if moment is None or moment < _FIRST:
            raise ValueError(
                f"is out of the years 1900 to 9999, which db.timezone={self._zone} supports; take UTC or +HH:MM"
            )
        return int((moment.utcoffset() or timedelta()).total_seconds())


@lru_cache(maxsize=64)
def java_zone(text: str) -> JavaZone | None:
    """Return the zone of ``db.timezone``; None for UTC. Raises ValueError like ``read_zone``."""
    zone = zone_info(read_zone(text))
    return None if zone is UTC else JavaZone(zone)


def read_zone(text: str) -> str:
    """Return ``text`` if it names a zone as Java writes them. Raises ValueError that says what is wrong."""
    if _PREFIXED.fullmatch(text):
        raise ValueError("must not begin with UTC or UT before an offset: Java reads such times as UTC; write +03:00")
    try:
        zone_info(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zones = available_timezones()
        if not zones:
            raise ValueError(f"can't be {text!r}: this system has no time zones; install the package tzdata") from None
        raise ValueError(f"must be a time zone such as Europe/Berlin or +03:00{nearest(text, zones)}") from None
    return text


@cache
def zone_info(text: str) -> tzinfo:
    """Return the zone that Java would understand by ``text``. Raises ValueError and ZoneInfoNotFoundError."""
    if text in _UTC_NAMES:
        return UTC
    text = _SHORT_IDS.get(text, text)
    if match := _OFFSET.fullmatch(text):
        hours, minutes = int(match[2]), int(match[3] or 0)
        if hours * 60 + minutes > 18 * 60 or minutes > 59:
            raise ValueError("an offset is at most 18 hours")
        offset = timedelta(hours=hours, minutes=minutes)
        return timezone(-offset if match[1] == "-" else offset)
    return ZoneInfo(text)

"""Time zones as Java knows them: ``java.time.ZoneId`` of ``db.timezone``, and the ``java.util.TimeZone`` made of it.

The two differ. ``TimeZone`` (which reads a wall time) has no history before 1900: there it takes the zone's standard
offset of today. A wall time that a change of the clocks skips is read with the offset before the change by both; one
that comes twice is the later moment for ``TimeZone`` and the earlier one for ``ZoneId``.

Sources: ``sun.util.calendar.ZoneInfo``, ``ZoneInfoFile`` and ``ZonedDateTime`` of JDK 17 to 25. The history itself is
that of Python's ``zoneinfo``: the system's tzdata, else the package of that name.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ..setting import nearest
from .java_calendar import proleptic_date, proleptic_day_number

__all__ = ["JavaZone", "java_zone", "read_zone", "zone_info"]

_DAY = 86_400
_UTC_1900 = -2_208_988_800
_LAST_YEAR = proleptic_day_number(292_278_994, 1, 1) * _DAY
"""The year in which Java's milliseconds end, within which its rules of summer time overflow."""
_OFFSET = re.compile(r"(?:GMT)?([+-])(\d{1,2})(?::?(\d\d))?", re.ASCII)
_PREFIXED = re.compile(r"(?:UTC|UT)[+-].*")
_UTC_NAMES = {"UTC", "Z", "GMT", "UT"}

_STANDARD = {"Africa/Casablanca": 0, "Africa/El_Aaiun": 0, "Africa/Windhoek": 3600}
"""Standard offsets where Java's tzdata calls standard time what other tzdata calls winter time."""

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
    """One zone. All arguments and results are whole seconds; wall times count from 1970-01-01 on the wall's clock.

    Immutable and safe to share.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        offsets = [self._offset(datetime(2400, month, 1, tzinfo=UTC).astimezone(zone)) for month in (1, 7)]
        self._standard = _STANDARD.get(str(zone), min(offsets))
        self._begins = _UTC_1900 + self.offset(_UTC_1900)
        """Wall time from which ``TimeZone`` has a history."""

    def wall_offset(self, wall: int) -> int:
        """The offset at a wall time, according to ``TimeZone``."""
        if wall < self._begins:
            return self._standard
        moment = _naive(wall).replace(tzinfo=self._zone)
        return min(self._offset(moment), self._offset(moment.replace(fold=1)))

    def legacy_offset(self, seconds: int) -> int:
        """The offset at a moment, according to ``TimeZone``."""
        return self.offset(seconds) if _UTC_1900 <= seconds < _LAST_YEAR else self._standard

    def offset(self, seconds: int) -> int:
        """The offset at a moment, according to ``ZoneId``."""
        moment = _naive(seconds).replace(tzinfo=UTC)
        try:
            return self._offset(moment.astimezone(self._zone))
        except OverflowError:  # within a day of year 1: before any zone's history, so an offset is as good
            return self._offset(moment.replace(tzinfo=self._zone))

    def modern_wall_offset(self, wall: int) -> int:
        """The offset at a wall time, according to ``ZoneId``."""
        return self._offset(_naive(wall).replace(tzinfo=self._zone))

    @staticmethod
    def _offset(moment: datetime) -> int:
        offset = moment.utcoffset()
        assert offset is not None
        return offset.days * _DAY + offset.seconds


def _naive(seconds: int) -> datetime:
    """The date and time of day; in a year that Python lacks, of one with the same calendar and rules."""
    days, rest = divmod(seconds, _DAY)
    year, month, day = proleptic_date(days)
    if year < 1:
        year = 4 if year % 4 == 0 else 1
    elif year > 9999:
        year = 9600 + year % 400 - (400 if year % 400 == 399 else 0)  # an hour before year 10000 is still a year's end
    return datetime(year, month, day) + timedelta(seconds=rest)  # noqa: DTZ001  # the caller says whose time it is


@lru_cache(maxsize=64)
def java_zone(text: str) -> JavaZone | None:
    """The zone of ``db.timezone``; None for UTC. Raises ValueError like ``read_zone``."""
    found = zone_info(read_zone(text))
    return None if found is UTC else JavaZone(found)


def read_zone(text: str) -> str:
    """``text`` when it names a zone as Java writes them. Raises ValueError that says what is wrong."""
    if _PREFIXED.fullmatch(text):
        raise ValueError("must not begin with UTC or UT before an offset: Java reads such times as UTC; write +03:00")
    try:
        zone_info(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        if not known:
            raise ValueError(f"can't be {text!r}: this system has no time zones; install the package tzdata") from None
        raise ValueError(f"must be a time zone such as Europe/Berlin or +03:00{nearest(text, known)}") from None
    return text


@cache
def zone_info(text: str) -> tzinfo:
    """The zone that Java would understand by ``text``. Raises ValueError and ZoneInfoNotFoundError."""
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

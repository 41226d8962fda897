"""The calendar of ``java.util.GregorianCalendar`` in UTC: Julian before 1582-10-15, Gregorian from then on.

``proleptic_date`` is that of ``java.time``, which is always Gregorian.

Days are counted from 1970-01-01, years astronomically (0 is 1 BC).
"""

from __future__ import annotations

__all__ = ["CUTOVER", "MILLIS_PER_DAY", "civil_date", "day_number", "proleptic_date"]

MILLIS_PER_DAY = 86_400_000
CUTOVER = -141_427
"""The day 1582-10-15, the first Gregorian one."""

_MARCH_0_GREGORIAN = 719_468
_MARCH_0_JULIAN = 719_470


def day_number(year: int, month: int, day: int) -> int:
    """Return the day of a date. A date that the change of 1582 left out is read as Julian, as by Java."""
    if month < 3:  # years begin in March here
        year, month = year - 1, month + 12
    julian = 365 * year + year // 4 + (153 * (month - 3) + 2) // 5 + day - 1 - _MARCH_0_JULIAN
    gregorian = julian - year // 100 + year // 400 + _MARCH_0_JULIAN - _MARCH_0_GREGORIAN
    return gregorian if gregorian >= CUTOVER else julian


def civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day."""
    return proleptic_date(days) if days >= CUTOVER else _julian_date(days)


def proleptic_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day by the Gregorian rules, also before 1582-10-15."""
    era, day = divmod(days + _MARCH_0_GREGORIAN, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    return _date(era * 400 + year, day - (365 * year + year // 4 - year // 100))


def _julian_date(days: int) -> tuple[int, int, int]:
    cycle, day = divmod(days + _MARCH_0_JULIAN, 1_461)
    year = (day - day // 1_460) // 365
    return _date(cycle * 4 + year, day - 365 * year)


def _date(year: int, day_of_year: int) -> tuple[int, int, int]:
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    return (year, month + 3, day) if month < 10 else (year + 1, month - 9, day)

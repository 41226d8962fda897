"""``java.text.SimpleDateFormat`` in UTC with English names: patterns compiled once, for writing and lenient reading.

Times are milliseconds since the epoch. The letters are those of a date, a time of day and its zone; Java's others
(weeks, days of a year, hours from 1 to 24 or from 0 to 11) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from .java_calendar import MILLIS_PER_DAY, civil_date, day_number

__all__ = ["DateFormat", "java_util_date_text"]

_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+", re.DOTALL)


class _Moment(NamedTuple):
    """The calendar fields of a time in UTC; ``weekday`` 0 is Monday, ``millis`` are of the day."""

    year: int
    month: int
    day: int
    weekday: int
    millis: int

    @property
    def hour(self) -> int:
        return self.millis // 3_600_000


def _padded(value: Callable[[_Moment], int]) -> Callable[[_Moment, int], str]:
    return lambda moment, count: str(value(moment)).zfill(count)


def _year(moment: _Moment, count: int) -> str:
    year = moment.year if moment.year > 0 else 1 - moment.year
    return str(year % 100).zfill(2) if count == 2 else str(year).zfill(count)


def _month(moment: _Moment, count: int) -> str:
    if count < 3:
        return str(moment.month).zfill(count)
    return _MONTHS[moment.month - 1][: 3 if count == 3 else None]


_WRITERS: Mapping[str, Callable[[_Moment, int], str]] = {
    "G": lambda moment, _: "AD" if moment.year > 0 else "BC",
    "y": _year,
    "M": _month,
    "d": _padded(lambda moment: moment.day),
    "E": lambda moment, count: _DAYS[moment.weekday][: 3 if count < 4 else None],
    "a": lambda moment, _: "AM" if moment.hour < 12 else "PM",
    "H": _padded(lambda moment: moment.hour),
    "h": _padded(lambda moment: moment.hour % 12 or 12),
    "m": _padded(lambda moment: moment.millis // 60_000 % 60),
    "s": _padded(lambda moment: moment.millis // 1000 % 60),
    "S": _padded(lambda moment: moment.millis % 1000),
    "z": lambda _, count: "UTC" if count < 4 else "Coordinated Universal Time",
    "Z": lambda *_: "+0000",
    "X": lambda *_: "Z",
}


class DateFormat:
    """One pattern. Immutable and safe to share, unlike Java's."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for a pattern that Java refuses, or that has a letter not in this module."""
        self.pattern = pattern
        self.parts = _parts(pattern)
        """Literals as (text, 0), fields as (letter, count)."""
        self._letters = [letter for letter, count in self.parts if count]
        self._short_year = ("y", 1) in self.parts or ("y", 2) in self.parts
        self._text = re.compile("".join(map(_regex, self.parts, [*self.parts[1:], ("", 0)])))

    def format(self, millis: int) -> str:
        """The text of a time."""
        days, rest = divmod(millis, MILLIS_PER_DAY)
        moment = _Moment(*civil_date(days), (days + 3) % 7, rest)
        return "".join(_WRITERS[text](moment, count) if count else text for text, count in self.parts)

    def read(self, text: str) -> int:
        """The time of a text, leniently: numbers out of range carry over, text behind a match is ignored.

        Raises ValueError for a text that does not match.
        """
        match = self._text.match(text)
        if match is None:
            raise ValueError("the text does not match the pattern")
        found = dict(zip(self._letters, match.groups(), strict=True))
        numbers = {letter: _number(letter, written) for letter, written in found.items()}
        if self._short_year and len(found["y"]) == 2 and found["y"].isdigit():
            numbers["y"] = _century(numbers["y"])
        year = numbers.get("y", 1970)
        days = day_number(1 - year if numbers.get("G") == 0 else year, numbers.get("M", 1), numbers.get("d", 1))
        hour = numbers["H"] if "H" in numbers else numbers.get("h", 0) + 12 * numbers.get("a", 0)
        if "H" not in numbers and numbers.get("h") == 12:
            hour -= 12
        minutes = (days * 24 + hour) * 60 + numbers.get("m", 0)
        minutes -= next((numbers[letter] for letter in "zZX" if letter in numbers), 0)
        return (minutes * 60 + numbers.get("s", 0)) * 1000 + numbers.get("S", 0)


def java_util_date_text(millis: int) -> bytes:
    """``java.util.Date.toString`` in UTC."""
    return _JAVA_UTIL_DATE.format(millis).encode()


def _parts(pattern: str) -> tuple[tuple[str, int], ...]:
    parts: list[tuple[str, int]] = []
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise ValueError("must be a pattern of SimpleDateFormat: a quote is not closed")
        if (quoted := match[1]) is not None:
            parts.append((quoted.replace("''", "'") or "'", 0))
        elif letter := match[2]:
            parts.append((letter, _checked(letter, len(match[0]))))
        else:
            parts.append((match[0], 0))
        position = match.end()
    return tuple(parts)


def _checked(letter: str, count: int) -> int:
    if letter not in _WRITERS:
        what = "is not supported" if letter in "YDLwWFukK" else "is not a letter of it"
        raise ValueError(f"must be a pattern of SimpleDateFormat: {letter} {what}")
    if letter == "X" and count > 3:
        raise ValueError("must be a pattern of SimpleDateFormat: X may stand three times at most")
    return count


_HOURS, _MINUTES = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_ZONES = {
    "X": f"Z|[+-]{_HOURS}",
    "XX": f"Z|[+-]{_HOURS}{_MINUTES}",
    "XXX": f"Z|[+-]{_HOURS}:{_MINUTES}",
    "z": f"[+-]{_HOURS}{_MINUTES}|(?i:UTC)|(?i:GMT)(?:(?![+-])|[+-](?:[0-9]|{_HOURS}):{_MINUTES})",
}
"""Time zones by pattern; of those with names only UTC and GMT."""
_OFFSET = re.compile(r"([+-])(\d\d?):?(\d\d)?")
_NAMES = {"M": [*_MONTHS, *(name[:3] for name in _MONTHS)], "E": [*_DAYS, *(name[:3] for name in _DAYS)]}
_NAMES |= {"a": ["AM", "PM"], "G": ["BC", "AD"]}


def _regex(part: tuple[str, int], following: tuple[str, int]) -> str:
    """A part of a text; where another number follows at once, the count says how many digits to take."""
    letter, count = part
    if not count:
        return re.escape(letter)
    if _is_number(part):
        digits = f"{{{count}}}" if _is_number(following) else "+"
        return rf"[ \t]*({'' if _is_number(following) else '-?'}\d{digits})"
    if letter in "zZX":
        return rf"[ \t]*({_ZONES[letter * count if letter == 'X' else 'z']})"
    return rf"[ \t]*((?i:{'|'.join(_NAMES[letter])}))"


def _is_number(part: tuple[str, int]) -> bool:
    letter, count = part
    return bool(count) and (letter in "ydHhmsS" or (letter == "M" and count < 3))


def _number(letter: str, written: str) -> int:
    """The field's value; of a zone the minutes ahead of UTC."""
    if letter in "zZX":
        offset = _OFFSET.search(written)
        minutes = int(offset[2]) * 60 + int(offset[3] or 0) if offset else 0
        return -minutes if offset and offset[1] == "-" else minutes
    if letter in _NAMES and not written.lstrip("-").isdecimal():
        names = _NAMES[letter]
        place = [name.lower() for name in names].index(written.lower())
        return place % 12 + 1 if letter == "M" else place
    number = int(written)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError("the text has a number of more than 32 bits, which does not match the pattern")
    return number


def _century(year: int) -> int:
    """A two-digit year lies within 80 years before and 20 years after today."""
    first = datetime.now(UTC).year - 80
    return first + (year - first) % 100


_JAVA_UTIL_DATE = DateFormat("EEE MMM dd HH:mm:ss zzz y")

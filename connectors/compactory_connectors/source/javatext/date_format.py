"""``java.text.SimpleDateFormat`` in UTC with English names: patterns compiled once, for writing and lenient reading.

Times are milliseconds since the epoch. Weeks are those of the United States, which Java takes where no other region is
set: they begin on Sunday, and the first one of a year or month holds its first day.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .java_calendar import MILLIS_PER_DAY, civil_date, day_number

__all__ = ["DateFormat", "Moment", "java_util_date_text"]

_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Moment:
    """The calendar fields of a time in UTC; ``year`` is astronomical."""

    days: int
    year: int
    month: int
    day: int
    millis: int

    @classmethod
    def of(cls, millis: int) -> Moment:
        """The fields of a time since the epoch."""
        days, rest = divmod(millis, MILLIS_PER_DAY)
        return cls(days, *civil_date(days), rest)

    @property
    def hour(self) -> int:
        """0 to 23."""
        return self.millis // 3_600_000

    @property
    def weekday(self) -> int:
        """0 is Monday."""
        return (self.days + 3) % 7

    @property
    def saturday(self) -> Moment:
        """The last day of its week."""
        return Moment.of((self.days + (5 - self.weekday) % 7) * MILLIS_PER_DAY)

    @property
    def day_of_year(self) -> int:
        """1 is the first of January."""
        return self.days - day_number(self.year, 1, 1) + 1


def _padded(value: Callable[[Moment], int]) -> Callable[[Moment, int], str]:
    return lambda moment, count: str(value(moment)).zfill(count)


def _year(moment: Moment, count: int) -> str:
    year = moment.year if moment.year > 0 else 1 - moment.year
    return str(year % 100).zfill(2) if count == 2 else str(year).zfill(count)


def _week_year(moment: Moment, count: int) -> str:
    """The year to which its week belongs; before Christ it is negative."""
    year = moment.saturday.year
    if count == 2 or year > 0:
        return _year(moment.saturday, count)
    return f"-{-year:0{count}d}" if year else "0" * count


def _month(moment: Moment, count: int) -> str:
    if count < 3:
        return str(moment.month).zfill(count)
    return _MONTHS[moment.month - 1][: 3 if count == 3 else None]


_WRITERS: dict[str, Callable[[Moment, int], str]] = {
    "G": lambda moment, _: "AD" if moment.year > 0 else "BC",
    "y": _year,
    "M": _month,
    "L": _month,
    "Y": _week_year,
    "w": _padded(lambda moment: (moment.saturday.day_of_year - 1) // 7 + 1),
    "W": _padded(lambda moment: (moment.day + (moment.weekday + 2 - moment.day) % 7 + 6) // 7),
    "D": _padded(lambda moment: moment.day_of_year),
    "d": _padded(lambda moment: moment.day),
    "F": _padded(lambda moment: (moment.days - day_number(moment.year, moment.month, 1)) // 7 + 1),  # also of 1582
    "E": lambda moment, count: _DAYS[moment.weekday][: 3 if count < 4 else None],
    "u": _padded(lambda moment: moment.weekday + 1),
    "a": lambda moment, _: "AM" if moment.hour < 12 else "PM",
    "H": _padded(lambda moment: moment.hour),
    "k": _padded(lambda moment: moment.hour or 24),
    "K": _padded(lambda moment: moment.hour % 12),
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
        """Raises ValueError for a pattern that Java refuses."""
        self.pattern = pattern
        self.parts = _parts(pattern)
        """Literals as (text, 0), fields as (letter, count)."""

    def format(self, millis: int) -> str:
        """The text of a time."""
        moment = Moment.of(millis)
        return "".join(_WRITERS[text](moment, count) if count else text for text, count in self.parts)

    def reader(self) -> Callable[[str], int]:
        """Reads times leniently; text behind a match is ignored, as ``DateFormat.parse`` does.

        Raises ValueError when this pattern can't read; the function raises it for a text that does not match.
        """
        return _Reader(self.parts).read


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
        raise ValueError(f"must be a pattern of SimpleDateFormat: {letter} is not a letter of it")
    if letter == "X" and count > 3:
        raise ValueError("must be a pattern of SimpleDateFormat: X may stand three times at most")
    return count


_OFFSETS = {
    "X": r"Z|([+-])(\d\d)()",
    "XX": r"Z|([+-])(\d\d)(\d\d)",
    "XXX": r"Z|([+-])(\d\d):(\d\d)",
    "z": r"([+-])(\d\d)(\d\d)|(?i:UTC)|(?i:GMT)(?:(?![+-])|([+-])(\d\d?):(\d\d))",
}
"""Time zones by pattern; of those with names only UTC and GMT."""
_NUMBERS = {"y", "D", "d", "H", "k", "K", "h", "m", "s", "S"}
_INTEGER = re.compile(r"-?\d+")


class _Reader:
    """Reads texts by a pattern, leniently: out-of-range numbers carry over."""

    def __init__(self, parts: tuple[tuple[str, int], ...]) -> None:
        unreadable = [letter for letter, count in parts if count and letter in "FuYwW"]
        if unreadable:
            raise ValueError(f"pattern letter {unreadable[0]} is supported for writing only")
        self._steps = [(text, count, self._adjacent(parts, index)) for index, (text, count) in enumerate(parts)]

    @staticmethod
    def _adjacent(parts: tuple[tuple[str, int], ...], index: int) -> bool:
        """Whether a number follows at once, so that the pattern's count says how many digits to take."""
        following = parts[index + 1 : index + 2]
        return bool(following and following[0][1]) and (
            following[0][0] in _NUMBERS or (following[0][0] in "ML" and following[0][1] < 3)
        )

    def read(self, text: str) -> int:
        values: dict[str, int] = {}
        position = 0
        for pattern, count, adjacent in self._steps:
            if not count:
                if not text.startswith(pattern, position):
                    raise ValueError("the text does not match the pattern")
                position += len(pattern)
                continue
            end = position + count if adjacent else len(text)
            while text[position : position + 1] in {" ", "\t"}:
                position += 1
            values[pattern], position = _read(pattern, count, text, position, end)
        return _time(values)


def _read(letter: str, count: int, text: str, position: int, end: int) -> tuple[int, int]:
    """The field's value, and where it ends: for a number that another follows, before ``end``."""
    if letter in _NUMBERS or (letter in "ML" and count < 3):
        match = _INTEGER.match(text, position, end) if end <= len(text) else None
        if match is None:
            raise ValueError("the text does not match the pattern")
        number = _int(match[0])
        return _century(number) if letter == "y" and _two_digits(count, match[0]) else number, match.end()
    if letter in "zZX":
        return _zone(letter, count, text, position)
    names = {"M": _MONTHS, "L": _MONTHS, "E": _DAYS, "a": ["AM", "PM"], "G": ["BC", "AD"]}[letter]
    rest = text[position:].lower()
    for index, name in enumerate(names):
        for written in (name, name[:3]):
            if rest.startswith(written.lower()):
                return index + (letter in "ML"), position + len(written)
    raise ValueError("the text does not match the pattern")


def _zone(letter: str, count: int, text: str, position: int) -> tuple[int, int]:
    """Minutes ahead of UTC, and where the zone ends."""
    match = re.compile(_OFFSETS[letter * count if letter == "X" else "z"], re.ASCII).match(text, position)
    sign, hours, minutes = [*filter(None, match.groups()), "", "", ""][:3] if match else ("", "24", "")
    if match is None or int(hours or 0) > 23 or int(minutes or 0) > 59:
        raise ValueError("the text does not match the pattern")
    return (int(hours or 0) * 60 + int(minutes or 0)) * (-1 if sign == "-" else 1), match.end()


def _two_digits(count: int, digits: str) -> bool:
    return count <= 2 and len(digits) == 2 and digits.isdigit()


def _century(year: int) -> int:
    """A two-digit year lies within 80 years before and 20 years after today."""
    from datetime import UTC, datetime

    first = datetime.now(UTC).year - 80
    return first + (year - first) % 100


def _int(digits: str) -> int:
    """``Number.intValue`` of what Java reads: the lower 32 bits of a long, an end of the range for more."""
    number, half = int(digits), 1 << 31
    if not -(1 << 63) <= number < 1 << 63:
        return half - 1 if number > 0 else -half
    return (number + half) % (2 * half) - half


def _time(values: dict[str, int]) -> int:
    year = values.get("y", 1970)
    if values.get("G") == 0:
        year = 1 - year
    days = _day(values, year)
    minutes = (days * 24 + _hour(values)) * 60 + values.get("m", 0)
    minutes -= next((values[letter] for letter in "zZX" if letter in values), 0)
    return (minutes * 60 + values.get("s", 0)) * 1000 + values.get("S", 0)


def _day(values: dict[str, int], year: int) -> int:
    """The day of the year, or month and day: the field later in the pattern decides."""
    if next((letter for letter in reversed(values) if letter in "Dd"), "d") == "D":
        return day_number(year, 1, 1) + values["D"] - 1
    return day_number(year, values.get("M", values.get("L", 1)), 1) + values.get("d", 1) - 1


def _hour(values: dict[str, int]) -> int:
    if "H" in values:
        return values["H"]
    if "k" in values:
        return values["k"] % 24 if values["k"] == 24 else values["k"]
    hour = values.get("K", values.get("h", 0))
    return (0 if hour == 12 and "h" in values else hour) + 12 * values.get("a", 0)


_JAVA_UTIL_DATE = DateFormat("EEE MMM dd HH:mm:ss zzz y")

"""``java.text.SimpleDateFormat`` in UTC, for patterns of numbers: written as Java does, read strictly.

Times are milliseconds since the epoch. The letters are ``y M d H m s S`` and the zones ``X`` and ``Z``; the others
are refused.
"""

from __future__ import annotations

import re

from .java_calendar import MILLIS_PER_DAY, civil_date, day_number

__all__ = ["DateFormat"]

_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+", re.DOTALL)
_NUMBERS = "yMdHmsS"
_LIMITS = {"H": 24, "m": 60, "s": 60, "S": 1000}
_HOURS, _MINUTES = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_ZONES = {
    "X": f"Z|[+-]{_HOURS}",
    "XX": f"Z|[+-]{_HOURS}{_MINUTES}",
    "XXX": f"Z|[+-]{_HOURS}:{_MINUTES}",
    "Z": f"[+-]{_HOURS}{_MINUTES}",
}
"""Time zones in a text by the field of the pattern."""


class DateFormat:
    """A pattern that is compiled once. Immutable and safe to share, unlike Java's."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for a pattern that Java refuses, or that has a letter not in this module."""
        self.pattern = pattern
        self.parts = _parts_of_pattern(pattern)
        """Literals as (text, 0), fields as (letter, count)."""
        self._letters = [letter for letter, count in self.parts if count]
        self._text = re.compile("".join(map(_regex, self.parts, [*self.parts[1:], ("", 0)])))

    def format(self, millis: int) -> str:
        """Return the text of a time."""
        days, clock = divmod(millis, MILLIS_PER_DAY)
        year, month, day = civil_date(days)
        numbers = {"y": year if year > 0 else 1 - year, "M": month, "d": day, "H": clock // 3_600_000}
        numbers |= {"m": clock // 60_000 % 60, "s": clock // 1000 % 60, "S": clock % 1000}
        zones = {"X": "Z", "Z": "+0000"}
        return "".join(
            (zones.get(part) or str(numbers[part]).zfill(count)) if count else part for part, count in self.parts
        )

    def read(self, text: str) -> int:
        """Return the time of a text. Raises ValueError for a text that does not match, or is no date or time of day."""
        match = self._text.fullmatch(text)
        if match is None:
            raise ValueError("the text does not match the pattern")
        fields = dict(zip(self._letters, match.groups(), strict=True))
        numbers = {letter: int(field) for letter, field in fields.items() if letter in _NUMBERS}
        date = numbers.get("y", 1970), numbers.get("M", 1), numbers.get("d", 1)
        days = day_number(*date)
        if civil_date(days) != date or any(numbers.get(letter, 0) >= limit for letter, limit in _LIMITS.items()):
            raise ValueError("the text is no date and time of day of the pattern")
        hour, minute, second, milli = (numbers.get(letter, 0) for letter in _LIMITS)
        minutes = (days * 24 + hour) * 60 + minute - _minutes_ahead(fields.get("X") or fields.get("Z") or "Z")
        return (minutes * 60 + second) * 1000 + milli


def _parts_of_pattern(pattern: str) -> tuple[tuple[str, int], ...]:
    parts: list[tuple[str, int]] = []
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise ValueError("must be a pattern of SimpleDateFormat: a quote is not closed")
        if (quoted := match[1]) is not None:
            parts.append((quoted.replace("''", "'") or "'", 0))
        elif letter := match[2]:
            _check_field(letter, match[0])
            parts.append((letter, len(match[0])))
        else:
            parts.append((match[0], 0))
        position = match.end()
    return tuple(parts)


def _check_field(letter: str, field: str) -> None:
    """Raise ValueError for a field of a pattern that is not supported."""
    is_name = letter == "M" and len(field) > 2
    if field in _ZONES or (letter in _NUMBERS and field != "yy" and not is_name):
        return
    raise ValueError(
        f"must be a pattern of SimpleDateFormat: {field} is not supported, only yyyy MM dd HH mm ss SSS, X to XXX and Z"
    )


def _regex(part: tuple[str, int], following: tuple[str, int]) -> str:
    """Return the expression of a part; where another number follows at once, the count says how many digits to take."""
    letter, count = part
    if not count:
        return re.escape(letter)
    if letter in _NUMBERS:
        is_followed = bool(following[1]) and following[0] in _NUMBERS
        return f"([0-9]{{{count}}})" if is_followed else "([0-9]{1,9})"
    return f"({_ZONES[letter * count]})"


def _minutes_ahead(zone: str) -> int:
    """Return the minutes by which a zone is ahead of UTC."""
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return -minutes if zone[0] == "-" else minutes

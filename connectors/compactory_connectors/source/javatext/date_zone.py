"""Time zones in texts, as ``SimpleDateFormat`` reads them: ``subParseNumericZone`` and the English names of zones."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["read_zone"]

_ISO: Mapping[int, re.Pattern[str]] = {
    1: re.compile(r"Z|([+-])(\d\d)()", re.ASCII),
    2: re.compile(r"Z|([+-])(\d\d)(\d\d)", re.ASCII),
    3: re.compile(r"Z|([+-])(\d\d):(\d\d)", re.ASCII),
}
"""``X`` by how often it stands."""
_RFC_822 = re.compile(r"([+-])(\d\d)(\d\d)", re.ASCII)
_GMT = re.compile(r"GMT(?:(?![+-])|([+-])(\d\d?):(\d\d))", re.ASCII | re.IGNORECASE)
_NAME = re.compile(r"[A-Z]{3,4}", re.ASCII | re.IGNORECASE)
_HOURS: Mapping[str, float] = {
    "UTC": 0,
    "WET": 0,
    "WEST": 1,
    "BST": 1,
    "CET": 1,
    "CEST": 2,
    "EET": 2,
    "EEST": 3,
    "MSK": 3,
    "IST": 2,
    "AST": -4,
    "ADT": -3,
    "EST": -5,
    "EDT": -4,
    "CST": -6,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PST": -8,
    "PDT": -7,
    "AKST": -9,
    "AKDT": -8,
    "HST": -10,
    "NST": -3.5,
    "WAT": 1,
    "CAT": 2,
    "SAST": 2,
    "EAT": 3,
    "HKT": 8,
    "JST": 9,
    "KST": 9,
    "ACST": 9.5,
    "AEST": 10,
    "AEDT": 11,
    "NZST": 12,
    "NZDT": 13,
}
"""Short names that Java 25 reads in English, and the hours that they stand for."""


def read_zone(letter: str, count: int, text: str, position: int) -> tuple[int, int]:
    """Minutes ahead of UTC, and where the zone ends. Raises ValueError for a text that is none, or not a known one."""
    pattern = _ISO[count] if letter == "X" else _RFC_822
    if match := pattern.match(text, position):
        return _minutes(match), match.end()
    if letter != "X":
        if match := _GMT.match(text, position):
            return _minutes(match), match.end()
        if (match := _NAME.match(text, position)) and (hours := _HOURS.get(match[0].upper())) is not None:
            return round(hours * 60), match.end()
    raise ValueError("the text does not match the pattern")


def _minutes(match: re.Match[str]) -> int:
    if match[1] is None:
        return 0
    hours, minutes = int(match[2]), int(match[3] or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("the text does not match the pattern")
    return (hours * 60 + minutes) * (-1 if match[1] == "-" else 1)

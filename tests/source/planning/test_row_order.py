"""Moments of an offset and their text, back and forth; the real connector's conditions."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.source.planning.row_order import format_timestamp, parse_timestamp

FIRST, LAST = datetime(1900, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001 - local times


@given(st.datetimes(FIRST, LAST), st.sampled_from(["UTC", "+05:30", "Asia/Tokyo"]))
def test_moments_come_back(moment: datetime, zone: str) -> None:
    text = moment.isoformat(sep=" ", timespec="microseconds")
    assert format_timestamp(*parse_timestamp(text, zone), zone) == text


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("1970-01-01 00:00:00.0005", "UTC", (0, 500_000)),
        ("1969-12-31 23:59:59.999999", "UTC", (-1, 999_999_000)),
        ("2024-01-01 01:00:00", "Europe/Berlin", (1_704_067_200_000, 0)),
        ("2024-01-01 01:00:00+01", "America/New_York", (1_704_067_200_000, 0)),
        ("infinity", "UTC", (0, 0)),
    ],
)
def test_connects_fields(text: str, zone: str, expected: tuple[int, int]) -> None:
    """``Timestamp.getTime()`` has the milliseconds, ``getNanos()`` the fraction of the second."""
    assert parse_timestamp(text, zone) == expected


def test_a_moment_with_its_offset() -> None:
    assert format_timestamp(1_704_067_200_123, 123_456_000, None) == "2024-01-01 00:00:00.123456+00:00"
    assert format_timestamp(-1) == "1969-12-31 23:59:59.999000"

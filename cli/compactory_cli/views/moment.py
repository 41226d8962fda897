"""Times on the command line: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from .terminal import span

__all__ = ["ago", "microseconds", "moment_text", "parsed_time"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_999  # milliseconds of the year 9999


def microseconds(option: str, text: str) -> int:
    """Return microseconds since 1970-01-01T00:00Z; a time without a zone is UTC. Raises ConfigError."""
    from compactory.errors import ConfigError

    try:
        if text.lstrip("-").isascii() and text.lstrip("-").isdigit():
            if abs(int(text)) > _LATEST:
                raise ValueError
            return int(text) * 1000
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text}: not a time; write it as 2024-01-31T10:00:00.000500 (UTC), 2024-01-31T10:00+02:00, or in"
            " milliseconds since 1970 as Kafka Connect does"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def parsed_time(option: str, text: str) -> datetime:
    """Return the time that `microseconds` reads."""
    return _EPOCH + timedelta(microseconds=microseconds(option, text))


def moment_text(micros: int) -> str:
    """Return ``2024-01-31 10:00:00.0005 UTC``, or ``<N> ms`` for a time that ``datetime`` can't hold."""
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros // 1000} ms"
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} UTC"


def ago(at: float) -> str:
    """Return how long ago a time in seconds since 1970 was: ``12 min ago``."""
    return f"{span(max(0.0, time.time() - at))} ago"

"""A place in the connector's own order of rows. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Cursor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in the connector's own order of rows, in the fields of Kafka Connect's offsets.

    ``timestamp`` is in milliseconds since 1970-01-01T00:00Z, ``timestamp_nanos`` the nanoseconds within its second.
    None: that column decides nothing.
    """

    timestamp: int | None = None
    timestamp_nanos: int | None = None
    incrementing: int | None = None

    @classmethod
    def at(cls, micros: int | None, incrementing: int | None = None) -> Cursor:
        """The cursor of a timestamp in microseconds since 1970-01-01T00:00Z."""
        if micros is None:
            return cls(incrementing=incrementing)
        seconds, fraction = divmod(micros, 1_000_000)
        return cls(
            timestamp=seconds * 1000 + fraction // 1000, timestamp_nanos=fraction * 1000, incrementing=incrementing
        )

    @property
    def micros(self) -> int | None:
        """The timestamp in microseconds since 1970-01-01T00:00Z."""
        if self.timestamp is None or self.timestamp_nanos is None:
            return None if self.timestamp is None else self.timestamp * 1000
        return self.timestamp // 1000 * 1_000_000 + self.timestamp_nanos // 1000

    @property
    def empty(self) -> bool:
        """Whether it is no place at all."""
        return self.timestamp is None and self.incrementing is None

    @classmethod
    def read(cls, value: dict[str, Any]) -> Cursor:
        """Read its fields out of JSON, or less of them. Raises ValueError for something else."""
        numbers = {name: value.get(name) for name in ("timestamp", "timestamp_nanos", "incrementing")}
        for name, number in numbers.items():
            if not (number is None or (isinstance(number, int) and not isinstance(number, bool))):
                raise ValueError(f"{name} is not a whole number")
        return cls(**numbers)

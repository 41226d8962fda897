"""Records on their way to Kafka. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Copy", "Headers", "ProducerRecord"]

Headers: TypeAlias = list[tuple[str, str | bytes | None]]
"""As the client takes them."""

ProducerRecord: TypeAlias = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, str, Headers]
"""Key and value, or key, value, topic and headers; the value None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A living record that is to get a tombstone in its own partition.

    ``timestamp_ms`` is the tombstone's, 0: the time of sending. Of a key that lives elsewhere it must not be newer than
    the record there, or readers would take the key for deleted.
    """

    key: bytes
    partition: int
    timestamp_ms: int = 0

    @property
    def misplaced(self) -> bool:
        """Whether its key lives in another partition, where it belongs."""
        return self.timestamp_ms > 0

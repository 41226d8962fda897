"""Records to be sent to Kafka. Pure data."""

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
    """A record whose key gets a tombstone in the partition of the record.

    ``timestamp_ms`` is the timestamp of the tombstone; 0: the time of sending. If the current record of the key is in
    another partition, the tombstone must not be newer than that record, or readers would delete the key.
    """

    key: bytes
    partition: int
    timestamp_ms: int = 0

    @property
    def misplaced(self) -> bool:
        """True if the key's current record is in another partition."""
        return self.timestamp_ms > 0

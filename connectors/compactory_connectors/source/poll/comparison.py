"""What a topic holds, as a digest of each key's newest value: so that a first load leaves out what is there already.

A source that goes on where Kafka Connect stopped can't tell from a timestamp and an id which rows Connect missed: a
transaction that commits late is older than both. The topic itself can.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Self, TypeAlias, TypeVar

from confluent_kafka import Message

__all__ = ["MOST_COMPARED", "Comparison"]

_Record: TypeAlias = tuple[bytes | None, bytes | None, *tuple[Any, ...]]
"""Key, value, and what else a record has, which is not compared."""

MOST_COMPARED = 2_000_000
"""Records of a topic that are compared without anybody having asked for it: some 300 MB at most."""

R = TypeVar("R", bound=_Record)
_BYTES = 16


class Comparison:
    """The newest value of every key of a topic, digested. Owned by one thread.

    Takes a key's bytes and 16 more, with Python's own cost of both about 150 bytes a key, however long values
    are. A key whose newest records in two partitions differ equals nothing.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, dict[bytes, bytes | None]] = {}
        self._final: dict[bytes, bytes | None] | None = None
        self._living: set[bytes] | None = None
        self._handed: dict[bytes, bytes | None] = {}  # over, and not known to be in the topic yet
        self.left_out = 0

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Self:
        """With every record of a topic."""
        made = cls()
        for message in messages:
            key, partition = message.key(), message.partition()
            if isinstance(key, bytes) and partition is not None:
                made._partitions.setdefault(partition, {})[key] = _digest(message.value())
        return made

    def living(self) -> set[bytes]:
        """Keys whose newest record in any partition is no tombstone."""
        return {key for newest in self._partitions.values() for key, value in newest.items() if value is not None}

    def expect(self, records: Iterable[_Record]) -> None:
        """Announce records in the order in which they will come: of each key only the last counts.

        Needed where several rows have one key, as with a row that replaced another one.
        """
        final = self._final if self._final is not None else {}
        self._final = final
        for key, value, *_ in records:
            if key is not None:
                final[key] = _digest(value)

    def settle(self) -> None:
        """What was handed over is in the topic."""
        for key, value in self._handed.items():
            for newest in self._partitions.values():
                newest.pop(key, None)
            self._partitions.setdefault(-1, {})[key] = value
        if self._living is not None:
            self._living.update(self._handed)
        self._handed.clear()

    def take_back(self) -> None:
        """What was handed over since the last :meth:`settle` was not sent."""
        self._handed.clear()

    def lacking(self, records: Iterable[R]) -> list[R]:
        """The records that the topic does not have; they count as sent unless they are taken back."""
        found: list[R] = []
        for record in records:
            key, value, *_ = record
            if key is not None and self._has(key, _digest(value)):
                self.left_out += 1
                continue
            found.append(record)
        return found

    def unknown(self, records: Iterable[R]) -> list[R]:
        """The records whose key lives in no partition of the topic; they count as sent unless they are taken back."""
        if self._living is None:
            self._living = self.living()
        found: list[R] = []
        for record in records:
            key = record[0]
            if key is not None and (key in self._living or key in self._handed):
                self.left_out += 1
                continue
            self._handed[key or b""] = None
            found.append(record)
        return found

    def _has(self, key: bytes, value: bytes | None) -> bool:
        """Whether a record need not be sent; otherwise it counts as sent."""
        if self._final is not None and self._final.get(key, value) != value:
            return True  # a later row of this key is the one that counts
        places = [self._handed] if key in self._handed else self._partitions.values()
        known = [newest[key] for newest in places if key in newest]
        if all(item == value for item in known) and (known or value is None):
            return True
        self._handed[key] = value
        return False


def _digest(value: bytes | str | None) -> bytes | None:
    if value is None:
        return None
    return blake2b(value if isinstance(value, bytes) else value.encode(), digest_size=_BYTES).digest()

"""The limits beyond which a removal or a change waits for an operator (guarantee 13). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from compactory_connectors.connect.record.record import KeyParts
from compactory_connectors.kafka.producer_record import Copy

__all__ = [
    "ALL",
    "FEW",
    "ChangedValue",
    "Hold",
    "PollHeld",
    "Removal",
    "hold_id",
    "keys_needed",
    "misplaced",
    "too_many",
]


FEW = 10
"""A removal of fewer keys may be of any share, unless it takes all."""

ALL = 3
"""A removal of every key of a directory of at least this size is held, however few they are."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that removes a key: a tombstone, or a ``value`` that says it is deleted; ``parts``: of its row."""

    key: bytes
    value: bytes | None = None
    parts: KeyParts | None = None


def misplaced(
    stamps: Mapping[tuple[bytes, int], int | None], home_of_key: Callable[[bytes], int | None], at: int
) -> Iterator[Copy]:
    """Return copies of living keys in partitions where they do not belong, each older than the record at home.

    ``stamps``: timestamps of the newest records by key and partition, in ms; None of a tombstone, -1 if brokers assign
    them. A tombstone for a copy that is as new as the record at home, or newer than ``at``, would be as new itself:
    readers would take the key for deleted.
    """
    for (key, partition), stamp in stamps.items():
        home = home_of_key(key)
        home_stamp = stamps.get((key, home)) if home is not None else None
        if partition != home and stamp is not None and home_stamp is not None and 0 < stamp < min(home_stamp, at):
            yield Copy(key, partition, stamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedValue:
    """A key whose value a held poll would change."""

    key: bytes
    old: bytes | None
    new: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A removal of ``removed`` of ``keys`` keys, or a change of ``changed`` values, that waits for an operator.

    An approval has to name its ``id``. ``sample`` has some of the changed values.
    """

    id: str
    keys: int
    removed: int = 0
    changed: int = 0
    sample: tuple[ChangedValue, ...] = ()

    @property
    def percent(self) -> float:
        """The share of the directory, rounded to a tenth."""
        return round(100 * max(self.removed, self.changed) / max(self.keys, 1), 1)


class PollHeld(Exception):
    """Nothing of this poll may be published before an operator approves it."""

    def __init__(self, hold: Hold, detail: str) -> None:
        super().__init__(detail)
        self.hold = hold


def too_many(count: int, keys: int, percent: int) -> bool:
    """Return True if ``count`` of ``keys`` keys need an approval, ``percent`` of them being allowed."""
    if count * 100 <= percent * keys:
        return False
    return count >= FEW or (count >= ALL and count >= keys)


def keys_needed(count: int, percent: int) -> int:
    """Return the smallest number of keys for which ``too_many`` is False."""
    if percent >= 100 or count < ALL:
        return 0
    if count < FEW:
        return count + 1
    return -(-count * 100 // percent) if percent else 1 << 62


def hold_id(parts: Iterable[bytes]) -> str:
    """Return an id for exactly these keys or records, the same in every process and order."""
    total = sum(int.from_bytes(blake2b(part, digest_size=16).digest(), "big") for part in parts)
    return f"{total % (1 << 40):010x}"

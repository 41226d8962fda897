"""When a removal is so large that a mistake is likelier than the truth (guarantee 13). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from compactory_connectors.connect.record.record import KeyParts
from compactory_connectors.kafka.producer_record import Copy

__all__ = [
    "ALL",
    "FEW",
    "HeldRemoval",
    "Removal",
    "RemovalHeld",
    "enough_left",
    "misplaced",
    "removal_id",
    "too_many",
]


FEW = 10
"""A removal of fewer keys may be of any share, unless it takes all."""

ALL = 3
"""A removal of every key of a directory of at least so many is held, however few they are."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that takes a key away: a tombstone, or a ``value`` that says it is deleted; ``parts``: of its row."""

    key: bytes
    value: bytes | None = None
    parts: KeyParts | None = None


def misplaced(
    stamps: Mapping[tuple[bytes, int], int | None], home: Callable[[bytes], int | None], now: int
) -> Iterator[Copy]:
    """Copies that may go, for their keys live in the partition where they belong, and since later.

    ``stamps``: timestamps of living records by key and partition, in ms, None of a tombstone, -1 where brokers give
    them. ``home`` says where a key belongs, or None. A tombstone for a copy that is as new as the record there, or as
    what comes after ``now``, would be as new itself: readers would take the key for deleted.
    """
    for (key, partition), stamp in stamps.items():
        belongs = home(key)
        there = stamps.get((key, belongs)) if belongs is not None else None
        if partition != belongs and stamp is not None and there is not None and 0 < stamp < min(there, now):
            yield Copy(key, partition, stamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRemoval:
    """A removal of ``removed`` of ``keys`` keys that waits for an operator. An approval has to name its ``id``."""

    id: str
    removed: int
    keys: int

    @property
    def percent(self) -> float:
        """The share of the directory, rounded to a tenth."""
        return round(100 * self.removed / max(self.keys, 1), 1)


class RemovalHeld(Exception):
    """Nothing of this poll may be published before an operator approves it."""

    def __init__(self, removal: HeldRemoval, detail: str) -> None:
        super().__init__(detail)
        self.removal = removal
        self.detail = detail


def too_many(removed: int, keys: int, percent: int) -> bool:
    """Whether the removal of ``removed`` of ``keys`` keys is to be held, ``percent`` of them being allowed."""
    if removed * 100 <= percent * keys:
        return False
    return removed >= FEW or (removed >= ALL and removed >= keys)


def enough_left(removed: int, percent: int) -> int:
    """With so many keys left, or more, a removal is not held; 0: it never is."""
    if percent >= 100 or removed < ALL:
        return 0
    if removed < FEW:
        return 1
    return -(-removed * (100 - percent) // percent) if percent else 1 << 62


def removal_id(keys: Iterable[bytes]) -> str:
    """A name for the removal of exactly these keys, the same in every process and order."""
    total = sum(int.from_bytes(blake2b(key, digest_size=16).digest(), "big") for key in keys)
    return f"{total % (1 << 40):010x}"

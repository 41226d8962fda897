"""When a removal is so large that a mistake is likelier than the truth (guarantee 13). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

__all__ = ["ALL", "FEW", "Copy", "HeldRemoval", "RemovalHeld", "enough_left", "removal_id", "too_many"]

FEW = 10
"""A removal of fewer keys may be of any share, unless it takes all."""

ALL = 3
"""A removal of every key of a directory of at least so many is held, however few they are."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A living record that is to get a tombstone in its own partition.

    ``timestamp_ms`` is the tombstone's, 0: the time of sending. Of a key that lives elsewhere it must not be newer than
    the record there, or readers would take the key for deleted.
    """

    key: bytes
    partition: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRemoval:
    """What waits for an operator: ``removed`` of ``keys`` keys. ``id`` is what an approval has to name."""

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

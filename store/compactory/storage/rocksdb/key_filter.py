"""A filter of the keys that a bulk load may have written, which saves reads of new keys. Pure."""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress
from operator import itemgetter

__all__ = ["KeyFilter"]

_EXACT = 1_000_000  # keys that are kept as they are, 100 bytes each; from then on there is only the filter
_SLOTS = 1 << 25  # bytes; at 10 million keys one in seven new ones is taken for existing, and looked up in vain


class KeyFilter:
    """The keys that may have been written; a key that it excludes needs no read. Belongs to one thread.

    May report a key that was never added (after a million keys); never misses one that was.

    Sets cost 0.1 µs a key; a filter of a byte a slot and one hash, which Python reads and writes in whole columns,
    0.3 µs and no more than 32 MB. A proper Bloom filter would take a µs.
    """

    def __init__(self) -> None:
        self._key_sets: dict[bytes, set[bytes]] | None = {}
        self._marks = bytearray()

    def possible(self, part: bytes, keys: Collection[bytes]) -> list[bytes]:
        """Return those keys of a part that may have been added."""
        if self._key_sets is None:
            return self._among(keys, self._slot_numbers(part, keys)) if keys else []
        added = self._key_sets.get(part)
        return [] if not added or added.isdisjoint(keys) else [key for key in keys if key in added]

    def add(self, part: bytes, keys: Collection[bytes]) -> list[bytes]:
        """Remember keys of a part; return those that may have been added before."""
        if not keys:
            return []
        if self._key_sets is None:
            slot_numbers = self._slot_numbers(part, keys)
            existing = self._among(keys, slot_numbers)
            self._fill(slot_numbers)
            return existing
        existing = self.possible(part, keys)
        self._key_sets.setdefault(part, set()).update(keys)
        if sum(map(len, self._key_sets.values())) > _EXACT:
            self._give_up_sets(self._key_sets)
        return existing

    def _give_up_sets(self, key_sets: dict[bytes, set[bytes]]) -> None:
        self._key_sets, self._marks = None, bytearray(_SLOTS)
        for part in list(key_sets):
            self._fill(self._slot_numbers(part, key_sets.pop(part)))

    def _fill(self, slot_numbers: list[int]) -> None:
        marks = self._marks
        for slot in slot_numbers:
            marks[slot] = 1

    def _among(self, keys: Collection[bytes], slot_numbers: list[int]) -> list[bytes]:
        marks = itemgetter(*slot_numbers)(self._marks) if len(slot_numbers) > 1 else (self._marks[slot_numbers[0]],)
        return list(compress(keys, marks)) if 1 in marks else []

    def _slot_numbers(self, part: bytes, keys: Collection[bytes]) -> list[int]:
        salt, mask = hash(part), _SLOTS - 1
        return [(hash(key) ^ salt) & mask for key in keys]

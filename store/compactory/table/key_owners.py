"""Decides which record counts: of several topic keys with one lookup key, of one topic key in several partitions. Pure.

Works on any mutable mapping, so that a backend on disk can provide its own. One thread writes. Meanwhile any thread may
read the current records: it sees the old or the new one of a lookup key, never none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from compactory.codec.packed_record import ORIGIN_SIZE, origin_of, pack_origin, recency
from compactory.records import Contested

__all__ = ["EntryUpdate", "KeyOwners", "PartitionConflicts"]

_MAX_CONTESTED_KEYS = 1000

Rank = tuple[int, int]
"""The `recency` of a packed record: its timestamp and address, which no other record has."""


class EntryUpdate(NamedTuple):
    """The old and the new packed record of one lookup key; None for none."""

    lookup_key: bytes
    old: bytes | None
    new: bytes | None


class KeyOwners:
    """Lookup key → the packed record that answers for it.

    Several topic keys may own one lookup key: an old inactive row and a new active one with the same natural key. All
    their records are kept, and the one with the newer timestamp answers (tie: higher partition, then higher offset).
    When it is removed, the next one answers.

    A lookup key with one owner is only in ``current``. With the second owner the records of both, the answering one
    too, become ``candidates``, by their origin; when one owner remains, its record is only in ``current`` again. Sorted
    lists keep the ranks of candidates in memory, 150 bytes each: the cost of an update hardly grows with the owners.
    ``lookup_key_of`` reads the lookup key of a packed record, for candidates that were kept on disk.
    """

    def __init__(
        self,
        current: MutableMapping[bytes, bytes],
        candidates: MutableMapping[bytes, bytes],
        lookup_key_of: Callable[[bytes], bytes],
    ) -> None:
        self._current = current
        self._candidates = candidates
        self._lookup_key_of = lookup_key_of
        self._ranks: dict[bytes, list[Rank]] | None = None  # of lookup keys with several owners, rising

    def current_after(self, lookup_key: bytes, removed: bytes | None, added: bytes | None) -> bytes | None:
        """Return the record that would answer after `replace` with the same arguments."""
        current = self._current.get(lookup_key)
        if current is not None and current == removed:
            ranks = self._ranks_by_key().get(lookup_key)
            if ranks is None or (added is not None and recency(added) > recency(current)):
                current = None  # no other owner, or none that is newer than ``added``
            else:
                current = self._candidate(ranks[-2])
        if current is None or added is None:
            return added if current is None else current
        return max(current, added, key=recency)

    def replace(self, lookup_key: bytes, removed: bytes | None, added: bytes | None) -> None:
        """Remove one owner's record of a lookup key and add another's. None removes or adds nothing."""
        current = self._current.get(lookup_key)
        ranks_by_key = self._ranks if self._ranks is not None else self._ranks_by_key()  # saves a call for each update
        ranks = ranks_by_key.get(lookup_key)
        if ranks is None:
            if current is None or current == removed:
                self._replace_only_owner(lookup_key, added)
                return
            ranks = ranks_by_key[lookup_key] = []  # a second owner comes: both become candidates
            self._add(ranks, current)
        elif removed is not None:
            del ranks[bisect_left(ranks, recency(removed))]
            del self._candidates[removed[-ORIGIN_SIZE:]]
        if added is not None:
            self._add(ranks, added)
        newest = self._candidate(ranks[-1])
        if len(ranks) == 1:  # one owner remains: it is no candidate any more
            del ranks_by_key[lookup_key], self._candidates[newest[-ORIGIN_SIZE:]]
        if newest != current:
            self._current[lookup_key] = newest

    def _replace_only_owner(self, lookup_key: bytes, added: bytes | None) -> None:
        if added is not None:
            self._current[lookup_key] = added
        else:
            self._current.pop(lookup_key, None)

    def _add(self, ranks: list[Rank], packed: bytes) -> None:
        insort(ranks, recency(packed))
        self._candidates[packed[-ORIGIN_SIZE:]] = packed

    def _candidate(self, rank: Rank) -> bytes:
        timestamp, address = rank
        return self._candidates[pack_origin(address, timestamp)]

    def _ranks_by_key(self) -> dict[bytes, list[Rank]]:
        """Return the ranks of lookup keys with several owners; the first call reads them from the candidates."""
        if self._ranks is None:
            self._ranks = {}
            for packed in self._candidates.values() if self._candidates else ():
                self._ranks.setdefault(self._lookup_key_of(packed), []).append(recency(packed))
            for ranks in self._ranks.values():
                ranks.sort()
        return self._ranks


class PartitionConflicts:
    """Finds the newer record of a topic key in several partitions by its timestamp, tombstones included.

    For the table's thread; any may read the figures.

    ``count``           records of a key that another partition has written
    ``contested_keys``  the first 1,000 such topic keys
    ``tombstones``      topic key → origin of its tombstone, of topics with several partitions
    """

    def __init__(self, directory: str, owners: Mapping[bytes, bytes], tombstones: MutableMapping[bytes, bytes]) -> None:
        self.count = 0
        self.contested_keys: dict[bytes, Contested] = {}
        self.tombstones = tombstones
        self._directory = directory
        self._owners = owners

    def is_superseded(self, topic_key: bytes, origin: bytes) -> bool:
        """Return True if another partition has a newer record of the topic key. Counts records of other partitions."""
        existing = self._owners.get(topic_key) or self.tombstones.get(topic_key)
        if existing is None:
            return False
        partition, existing_partition = origin_of(origin).partition, origin_of(existing).partition
        if partition == existing_partition:
            return False
        self.count += 1
        if topic_key in self.contested_keys or len(self.contested_keys) < _MAX_CONTESTED_KEYS:
            self.contested_keys[topic_key] = Contested(self._directory, topic_key, partition, existing_partition)
        return recency(existing) > recency(origin)

    def forget_tombstones(self, before_ms: int) -> None:
        """Forget tombstones older than a record time, when no older record can come any more."""
        expired = [key for key, origin in self.tombstones.items() if origin_of(origin).timestamp_ms < before_ms]
        for topic_key in expired:
            del self.tombstones[topic_key]

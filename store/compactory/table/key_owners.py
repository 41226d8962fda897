"""Which record answers for a name that several owners have. Pure.

Works on any mutable mapping, so that a backend on disk can lend its own. One thread writes; any thread may read the
current records meanwhile and sees the old or the new one, never neither.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, MutableMapping
from typing import NamedTuple

from compactory.codec.packed_record import ORIGIN_SIZE, pack_origin, recency

__all__ = ["EntryUpdate", "KeyOwners"]

Rank = tuple[int, int]  # what `newer` gives: the record's timestamp and place, which tell it from all others


class EntryUpdate(NamedTuple):
    """The change that a record makes to one lookup key: the packed records that answered before, and answer now."""

    name: bytes
    old: bytes | None
    new: bytes | None


class KeyOwners:
    """Name → the packed record that answers for it.

    Several owners may have one name (an old inactive row and a new active one with the same natural key). All of them
    are kept; the one with the newer record timestamp answers (tie: higher partition, then higher offset), and when it
    goes, the next appears. Where there are several, ``candidates`` keeps them by their metadata, and a sorted list
    keeps their ranks in memory, 150 bytes for each: thousands under one name cost each other next to nothing.
    ``name_of`` reads the name out of a packed record, for candidates that were kept on disk.
    """

    def __init__(
        self,
        current: MutableMapping[bytes, bytes],
        candidates: MutableMapping[bytes, bytes],
        name_of: Callable[[bytes], bytes],
    ) -> None:
        self._current = current
        self._candidates = candidates
        self._name_of = name_of
        self._ranks: dict[bytes, list[Rank]] | None = None  # of names with several owners; rising

    def current_for(self, name: bytes, gone: bytes | None, packed: bytes | None) -> bytes | None:
        """Return which record would answer for ``name`` if ``gone`` did not own it any more and ``packed`` did."""
        head = self._current.get(name)
        if head is not None and head == gone:
            ranks = self._several().get(name)
            overtaken = packed is not None and recency(packed) > recency(head)
            head = None if ranks is None or overtaken else self._candidate(ranks[-2])
        if head is None or packed is None:
            return packed if head is None else head
        return max(head, packed, key=recency)

    def settle(self, name: bytes, gone: bytes | None, packed: bytes | None) -> None:
        """Let that be so."""
        head = self._current.get(name)
        several = self._ranks if self._ranks is not None else self._several()  # a call less for each update
        ranks = several.get(name)
        if ranks is None:
            if packed is not None and (head is None or head == gone):
                self._current[name] = packed
                return
            if head is None or head == gone:
                self._current.pop(name, None)
                return
            ranks = several[name] = []
            self._add(ranks, head)
        elif gone is not None:
            del ranks[bisect_left(ranks, recency(gone))]
            del self._candidates[gone[-ORIGIN_SIZE:]]
        if packed is not None:
            self._add(ranks, packed)
        newest = self._candidate(ranks[-1])
        if len(ranks) == 1:
            del several[name], self._candidates[newest[-ORIGIN_SIZE:]]
        if newest != head:
            self._current[name] = newest

    def _add(self, ranks: list[Rank], packed: bytes) -> None:
        insort(ranks, recency(packed))
        self._candidates[packed[-ORIGIN_SIZE:]] = packed

    def _candidate(self, rank: Rank) -> bytes:
        timestamp, place = rank
        return self._candidates[pack_origin(place, timestamp)]

    def _several(self) -> dict[bytes, list[Rank]]:
        """Return the ranks by name; made of what was kept on disk when the first record comes."""
        if self._ranks is None:
            self._ranks = {}
            for packed in self._candidates.values() if self._candidates else ():
                self._ranks.setdefault(self._name_of(packed), []).append(recency(packed))
            for ranks in self._ranks.values():
                ranks.sort()
        return self._ranks

"""Which keys of a topic live, in eight bytes a key: digests stand for keys. Pure.

Two keys share a digest once in a hundred million topics of a million keys each; a vanished one is then not found. No
key is ever removed for another's sake: what is found is looked up by its bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

__all__ = ["LivingKeys", "TopicKeys", "digest"]

_MASK = (1 << 64) - 2
_BUCKETS = 256
_FIRST = 2048  # notes of a bucket before it is tidied for the first time


def digest(key: bytes) -> int:
    """63 bits of a key, the lowest bit zero. It holds within one process only."""
    return hash(key) & _MASK


class LivingKeys:
    """The living keys of one partition, from notes in the order of its records. Owned by one thread.

    Takes 8 bytes a note; notes that later ones made obsolete are dropped as they double.
    """

    def __init__(self) -> None:
        self._buckets = [array("Q") for _ in range(_BUCKETS)]
        self._limits = [_FIRST] * _BUCKETS

    def note(self, number: int, *, alive: bool) -> None:
        """A later record says that the key of this digest lives, or does not."""
        place = number >> 56
        bucket = self._buckets[place]
        bucket.append(number | alive)
        if len(bucket) > self._limits[place]:
            self._tidy(place)

    def forget(self, numbers: Iterable[int]) -> None:
        """The keys of these digests live no more."""
        for number in numbers:
            self.note(number, alive=False)

    def buckets(self) -> Iterator[tuple[int, set[int]]]:
        """The digests of living keys by bucket; every digest is in one bucket."""
        for place in range(_BUCKETS):
            self._tidy(place)
            yield place, {number & _MASK for number in self._buckets[place]}

    def living(self) -> set[int]:
        """The digests of all living keys; as a set they take ten times the room."""
        return {number for _, numbers in self.buckets() for number in numbers}

    def __len__(self) -> int:
        """How many keys live."""
        for place in range(_BUCKETS):
            self._tidy(place)
        return sum(map(len, self._buckets))

    def _tidy(self, place: int) -> None:
        latest = {number & _MASK: number for number in self._buckets[place]}
        self._buckets[place] = array("Q", (number for number in latest.values() if number & 1))
        self._limits[place] = max(_FIRST, 2 * len(self._buckets[place]))


class TopicKeys:
    """The living keys of every partition of a topic. Owned by one thread."""

    def __init__(self) -> None:
        self._partitions: dict[int, LivingKeys] = {}

    def partition(self, number: int) -> LivingKeys:
        """Those of one partition."""
        if number not in self._partitions:
            self._partitions[number] = LivingKeys()
        return self._partitions[number]

    def merged(self) -> tuple[LivingKeys, set[int]]:
        """What lives in any partition, and what lives in several. Empties this."""
        several: set[int] = set()
        parts = [self._partitions.pop(number) for number in sorted(self._partitions)]
        if len(parts) == 1:
            return parts[0], several
        merged = LivingKeys()
        for found in zip(*(part.buckets() for part in parts), strict=True):
            known: set[int] = set()
            for _, numbers in found:
                several |= known & numbers
                known |= numbers
            for number in known:
                merged.note(number, alive=True)
        return merged, several

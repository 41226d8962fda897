"""What tasks count on the way: rows, removals, bad records, digests, types; added up wherever it comes from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from compactory.lookup.digest import RANGES, DirectoryDigest, RangeDigest

from .json_columns import Fields
from .json_types import merged

__all__ = ["MOST_PLACES", "BadPlace", "Tally", "digest_sums"]

MOST_PLACES: Final = 100
"""Bad records that are named; further ones are only counted."""

_HASHED: Final = 32  # bytes of a SHA-256


class BadPlace(NamedTuple):
    """Where a bad record is, and what is wrong with it."""

    partition: int
    offset: int
    error: str


def _no_sums() -> npt.NDArray[np.uint64]:
    return np.zeros((RANGES, 3), np.uint64)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Adds up in any order. ``sums`` has for each range of keys: records, and both sums of a digest."""

    rows: int = 0
    tombstones: int = 0
    inactive: int = 0
    nameless: int = 0
    """Records whose key is not UTF-8."""
    strays: tuple[int, ...] = (0, 0)
    """Keys that are not where a partitioner puts them, by `partition_homes`: others of theirs may be elsewhere."""
    spills: int = 0
    """How often a task handed keys on that may have come again."""
    places: list[BadPlace] = field(default_factory=list)
    found: Fields = field(default_factory=dict)
    sums: npt.NDArray[np.uint64] = field(default_factory=_no_sums)

    def __add__(self, other: Tally) -> Tally:
        added = {
            item.name: getattr(self, item.name) + getattr(other, item.name)
            for item in fields(Tally)
            if item.name not in {"places", "found", "strays"}
        }
        strays = tuple(map(sum, zip(self.strays, other.strays, strict=True)))
        places = sorted([*self.places, *other.places])[:MOST_PLACES]
        return Tally(**added, strays=strays, places=places, found=merged(self.found, other.found))

    @property
    def digest(self) -> DirectoryDigest:
        """The digests of all ranges."""
        return DirectoryDigest([RangeDigest(*map(int, sums)) for sums in self.sums])


def digest_sums(keys: Sequence[bytes], values: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """What `Tally.sums` has for these records; faster than `DirectoryDigest`, as numpy adds a batch at a time."""
    sums = _no_sums()
    if not keys:
        return sums
    heads = {length: length.to_bytes(4, "big") for length in set(map(len, keys))}
    ranges = np.frombuffer(b"".join([sha256(key).digest() for key in keys]), np.uint8)[::_HASHED]
    records = zip(keys, values, strict=True)
    digests = b"".join([sha256(heads[len(key)] + key + value).digest() for key, value in records])
    halves = np.frombuffer(digests, ">u8").reshape(-1, _HASHED // 8)[:, :2].astype(np.uint64)
    order = np.argsort(ranges, kind="stable")
    present, starts, counts = np.unique(ranges[order], return_index=True, return_counts=True)
    sums[present, 0] = counts
    sums[present, 1:] = np.add.reduceat(halves[order], starts)
    return sums

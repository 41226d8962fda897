"""The counts of tasks: rows, removals, bad records, digests, types; added up wherever they come from. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt
from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from compactory.lookup.digest import RANGES, DirectoryDigest, RangeDigest

from ..typed.json_columns import Fields
from ..typed.json_types import merged
from .manifest import Place

__all__ = ["Tally", "digest_sums", "tally_of"]

_MOST_PLACES: Final = 100  # bad records that are named; further ones are only counted

_HASHED: Final = 32  # bytes of a SHA-256


def _no_sums() -> npt.NDArray[np.uint64]:
    return np.zeros((RANGES, 3), np.uint64)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Adds up in any order. ``sums`` has for each range of keys: records, and both sums of a digest."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the names of :class:`Counts`."""
    strays: tuple[int, ...] = (0, 0)
    """Keys that are not where a partitioner puts them, by `partition_homes`: others of theirs may be elsewhere."""
    spills: int = 0
    """How often a task handed keys on that may have come again."""
    places: list[Place] = field(default_factory=list)
    found: Fields = field(default_factory=dict)
    sums: npt.NDArray[np.uint64] = field(default_factory=_no_sums)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            counts=self.counts + other.counts,
            strays=tuple(map(sum, zip(self.strays, other.strays, strict=True))),
            spills=self.spills + other.spills,
            places=sorted([*self.places, *other.places])[:_MOST_PLACES],
            found=merged(self.found, other.found),
            sums=self.sums + other.sums,
        )

    @property
    def digest(self) -> DirectoryDigest:
        """The digests of all ranges."""
        return DirectoryDigest([RangeDigest(*map(int, sums)) for sums in self.sums])


class _Adding(AccumulatorParam[Tally]):
    """Adds tallies for Spark."""

    def zero(self, value: Tally) -> Tally:
        del value
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802 (Spark's name)
        return value1 + value2


def tally_of(spark: SparkSession) -> Accumulator[Tally]:
    """A new tally: tasks call ``add``, the driver asks for ``value``."""
    return spark.sparkContext.accumulator(Tally(), _Adding())


def digest_sums(keys: Sequence[bytes], values: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """The numbers of `Tally.sums` for these records; faster than `DirectoryDigest`, as numpy adds a batch at a time."""
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

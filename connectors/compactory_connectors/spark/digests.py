"""Digests of records by key range, a batch at a time: `compactory.read.digest` in numpy, for tasks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from compactory.read.digest import RANGES, DirectoryDigest, RangeDigest

__all__ = ["Sums", "digest_of", "no_sums", "sums_of"]

Sums: TypeAlias = npt.NDArray[np.uint64]
"""For each range of keys: records, and both sums of a digest. They add up."""

_HASHED: Final = 32  # bytes of a SHA-256


def no_sums() -> Sums:
    """The sums of no record."""
    return np.zeros((RANGES, 3), np.uint64)


def sums_of(keys: Sequence[bytes], values: Sequence[bytes]) -> Sums:
    """The sums of these records."""
    sums = no_sums()
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


def digest_of(sums: Sums) -> DirectoryDigest:
    """The digests of all ranges."""
    return DirectoryDigest([RangeDigest(*map(int, each)) for each in sums])

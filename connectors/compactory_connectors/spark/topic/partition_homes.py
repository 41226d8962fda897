"""Counts keys that are not in the partition where a well-known partitioner puts them. Pure.

If one partitioner has put all keys of a topic, no key is in two partitions.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["strays"]

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)


def strays(keys: pa.BinaryArray, partition: int, partitions: int) -> tuple[int, int]:
    """Return how many of these keys belong elsewhere by the rules of Java's producer and our source, and of librdkafka.

    Sources: `topics.partitioner`; librdkafka's default, ``consistent`` (CRC-32 of the key).
    """
    if partitions == 1 or len(keys) == 0:
        return (0, 0)
    _, ends, data = keys.buffers()
    bounds = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(bounds)
    java = 0
    for length in np.unique(lengths):
        starts = bounds[:-1][lengths == length]
        letters = text[starts[:, None] + np.arange(length)]
        java += int(np.count_nonzero((_murmur2(letters) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions) != partition))
    hashes = np.fromiter(map(crc32, keys.to_pylist()), np.uint32, len(keys))
    native = int(np.count_nonzero(hashes % np.uint32(partitions) != partition))
    return java, native


def _murmur2(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the hashes of keys of one length, of which each row is one."""
    rows, length = letters.shape
    words = np.pad(letters, ((0, 0), (0, -length % 4))).view("<u4")
    hashes = np.full(rows, _SEED ^ np.uint32(length), np.uint32)
    for number in range(length // 4):
        part = words[:, number] * _M
        part = (part ^ (part >> np.uint32(24))) * _M
        hashes = (hashes * _M) ^ part
    if length % 4:
        hashes = (hashes ^ words[:, -1]) * _M
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _M
    return hashes ^ (hashes >> np.uint32(15))

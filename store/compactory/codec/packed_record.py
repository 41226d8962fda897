"""Packed records: the value bytes of a record, followed by the 16 bytes of its origin. Pure.

The *origin* is two little-endian 64-bit numbers: the *address* (partition in the upper 16 bits, offset in the lower 48)
and the timestamp in milliseconds. No two records of a topic share an address. A tuple for each record instead costs a
third of the loading speed and 100 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from compactory.records import Entry

__all__ = [
    "ORIGIN_SIZE",
    "Origin",
    "count_by_partition",
    "entry_of",
    "first_address",
    "origin_of",
    "pack_origin",
    "recency",
    "unpack_origin",
]

_ORIGIN = Struct("<qq")
_OFFSET_BITS = 48
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1

ORIGIN_SIZE = _ORIGIN.size
pack_origin = _ORIGIN.pack  # (address, timestamp_ms) -> the 16 bytes; no Python call while loading
_unpack_from = _ORIGIN.unpack_from
_partition_bytes = itemgetter(slice(-10, -8))  # the upper two bytes of the address


class Origin(NamedTuple):
    """The partition, offset and timestamp of a record."""

    partition: int
    offset: int
    timestamp_ms: int


def first_address(partition: int) -> int:
    """Return the address of offset 0 in a partition; an offset added to it gives the address of that record."""
    return partition << _OFFSET_BITS


def origin_of(packed: bytes) -> Origin:
    """Return the origin of a packed record, or of the 16 bytes alone."""
    return Origin(*unpack_origin(packed))


def unpack_origin(packed: bytes) -> tuple[int, int, int]:
    """Return partition, offset and timestamp as a plain tuple, in half the time of `origin_of`."""
    address, timestamp = _unpack_from(packed, len(packed) - ORIGIN_SIZE)
    return address >> _OFFSET_BITS, address & _OFFSET_MASK, timestamp


def entry_of(key: str, packed: bytes, topic: str) -> Entry:
    """Return the entry of a lookup key and its packed record."""
    return Entry(key, packed[:-ORIGIN_SIZE], topic, *unpack_origin(packed))


def recency(packed: bytes) -> tuple[int, int]:
    """Return the sort key of packed records: timestamp, then partition, then offset."""
    address, timestamp = _unpack_from(packed, len(packed) - ORIGIN_SIZE)
    return timestamp, address


def count_by_partition(packed_records: Iterable[bytes]) -> dict[int, int]:
    """Return the number of packed records from each partition. Takes 0.1 s a million."""
    counts = Counter(map(_partition_bytes, packed_records))
    return {int.from_bytes(partition, "little"): count for partition, count in counts.items()}

"""How one live value is held: its bytes as they came, followed by 16 bytes that say where they came from. Pure.

A tuple for each record cost a third of the loading speed and 100 bytes; packing costs a sixth and 16 bytes. The 16
bytes, its *metadata*, are two little-endian 64-bit numbers: the *place* (partition in the upper 16 bits, offset in the
lower 48) and the timestamp in milliseconds. A packed record never changes, and no two share a place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from compactory.records import Entry

__all__ = [
    "METADATA_SIZE",
    "Origin",
    "count_partitions",
    "entry_of",
    "newer",
    "origin",
    "pack",
    "partition_base",
    "unpack",
]

_METADATA = Struct("<qq")
_OFFSET_BITS = 48
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1

METADATA_SIZE = _METADATA.size
pack = _METADATA.pack  # (place, timestamp_ms) -> metadata; a name of C speed for the loading loop
_unpack_from = _METADATA.unpack_from
_partition_bytes = itemgetter(slice(-10, -8))


class Origin(NamedTuple):
    """Where a packed record lies in its topic."""

    partition: int
    offset: int
    timestamp_ms: int


def partition_base(partition: int) -> int:
    """Return what is added to an offset to make a place."""
    return partition << _OFFSET_BITS


def origin(packed: bytes) -> Origin:
    """Return where the packed record (or its metadata alone) came from."""
    return Origin(*unpack(packed))


def unpack(packed: bytes) -> tuple[int, int, int]:
    """Return partition, offset and timestamp as a plain tuple: what `origin` gives, at half the price."""
    place, timestamp = _unpack_from(packed, len(packed) - METADATA_SIZE)
    return place >> _OFFSET_BITS, place & _OFFSET_MASK, timestamp


def entry_of(key: str, packed: bytes, topic: str) -> Entry:
    """Return the entry that a packed record holds under a lookup key."""
    return Entry(key, packed[:-METADATA_SIZE], topic, *unpack(packed))


def newer(packed: bytes) -> tuple[int, int]:
    """Sort key: the newer record timestamp, then the higher partition, then the higher offset."""
    place, timestamp = _unpack_from(packed, len(packed) - METADATA_SIZE)
    return timestamp, place


def count_partitions(packed_records: Iterable[bytes]) -> dict[int, int]:
    """Count the packed records by partition, 0.1 s a million: it is the place's upper two bytes."""
    counted = Counter(map(_partition_bytes, packed_records))
    return {int.from_bytes(upper, "little"): number for upper, number in counted.items()}

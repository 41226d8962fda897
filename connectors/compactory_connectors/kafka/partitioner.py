"""The partition of a key, as Java's producer and librdkafka's partitioners have it. Pure.

Source: ``Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey`` of the Kafka client (4.1), ``rdmurmur2.c``,
``rdfnv1a.c`` and ``rdkafka_msg.c`` of librdkafka (2.11). Records without a key go anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

__all__ = ["agrees", "home_of", "murmur2", "partition_of", "placing"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Java's ``Utils.murmur2``, unsigned."""
    length = len(data)
    found = (_SEED ^ length) & _32
    whole = length & ~3
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * _M & _32
        part = (part ^ (part >> 24)) * _M & _32
        found = (found * _M & _32) ^ part
    if length > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _M & _32
    found = (found ^ (found >> 13)) * _M & _32
    return found ^ (found >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def agrees(partitioner: str | None) -> bool:
    """Whether a producer with this property ``partitioner`` puts keys where :func:`partition_of` has them."""
    return placing(partitioner) == "murmur2"


def placing(partitioner: str | None) -> str:
    """The function behind a property ``partitioner``; None: the property is not set, and ours is ``murmur2_random``."""
    return (partitioner or "murmur2").removesuffix("_random")


def home_of(key: bytes, partitions: int, partitioner: str | None) -> int | None:
    """The partition where a producer with this property puts a key; None where that is left to chance."""
    number = _NUMBERS.get(placing(partitioner))
    return number(key) % partitions if number is not None and key and partitions else None


def _fnv1a(key: bytes) -> int:
    found = 0x811C9DC5
    for byte in key:
        found = (found ^ byte) * 0x01000193 & _32
    return found if found < 1 << 31 else (1 << 32) - found  # as a signed number without its sign


_NUMBERS: dict[str, Callable[[bytes], int]] = {
    "murmur2": lambda key: murmur2(key) & 0x7FFFFFFF,
    "consistent": crc32,
    "fnv1a": _fnv1a,
}
"""The numbers that are divided by the number of partitions. ``random`` is not among them."""

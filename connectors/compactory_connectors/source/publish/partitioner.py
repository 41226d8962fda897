"""The partition of a key, as Java's producer and librdkafka's ``murmur2_random`` have it. Pure.

Source: ``Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey`` of the Kafka client (4.1), ``rdmurmur2.c`` of
librdkafka (2.11). Records without a key go anywhere.
"""

from __future__ import annotations

__all__ = ["agrees", "murmur2", "partition_of"]

_ALIKE = {None, "murmur2", "murmur2_random"}  # ours is the last of them, unless a property says otherwise
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
    return partitioner in _ALIKE

"""The partition of a key, computed as Java's producer and librdkafka do. Pure.

Source: ``Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey`` of the Kafka client (4.1), ``rdmurmur2.c``,
``rdfnv1a.c`` and ``rdkafka_msg.c`` of librdkafka (2.11). Records without a key go anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

__all__ = ["hash_name", "murmur2", "partition_by", "partition_of"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of Java's ``Utils.murmur2``, unsigned."""
    length = len(data)
    code = (_SEED ^ length) & _32
    whole = length & ~3
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * _M & _32
        part = (part ^ (part >> 24)) * _M & _32
        code = (code * _M & _32) ^ part
    if length > whole:
        code = (code ^ int.from_bytes(data[whole:], "little")) * _M & _32
    code = (code ^ (code >> 13)) * _M & _32
    return code ^ (code >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key among ``partitions`` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def hash_name(partitioner: str | None) -> str:
    """Return the hash function of a property ``partitioner``: murmur2 where the property is not set."""
    return (partitioner or "murmur2").removesuffix("_random")


def partition_by(key: bytes, partitions: int, partitioner: str | None) -> int | None:
    """Return the partition where a producer with this property puts a key; None if the partition is random."""
    number = _NUMBERS.get(hash_name(partitioner))
    return number(key) % partitions if number is not None and key and partitions else None


def _fnv1a(key: bytes) -> int:
    code = 0x811C9DC5
    for byte in key:
        code = (code ^ byte) * 0x01000193 & _32
    return code if code < 1 << 31 else (1 << 32) - code  # as a signed number without its sign


_NUMBERS: dict[str, Callable[[bytes], int]] = {
    "murmur2": lambda key: murmur2(key) & 0x7FFFFFFF,
    "consistent": crc32,
    "fnv1a": _fnv1a,
}
"""Hash functions by name. The partition is the hash modulo the number of partitions. ``random`` has none."""

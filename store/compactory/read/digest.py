"""Order-independent digests of what a directory holds, by key range: equal digests mean equal contents.

A table, a topic, files and a running store may each compute them where they are; only the digests travel. Pure, and of
this definition, which every part that computes digests must share (decision 0020 has it in SQL for Postgres and Spark):

- the *range* of a key is the first byte of SHA-256(key), so that there are 256 ranges of about the same size;
- the digest of a record is the first 16 bytes of SHA-256(length of the key in 4 bytes, big endian ‖ key ‖ value);
- the digest of a range is the number of its records and the sums, modulo 2⁶⁴, of the first and of the last eight bytes
  of their digests, each read as an unsigned big-endian number. Only what lives counts: a tombstone is no record.

Sums don't depend on the order, can be taken in parts, and can be brought up to date: take the old record's digest off,
add the new one's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct

__all__ = ["RANGES", "VERSION", "Digester", "DirectoryDigest", "RangeDigest", "range_of", "record_digest"]

VERSION = 1
"""Of the definition; digests of different versions can't be compared."""

RANGES = 256

_WRAP = 1 << 64
_halves = Struct(">QQ").unpack_from


def range_of(key: bytes) -> int:
    """Return the range that a key belongs to, 0 to 255."""
    return sha256(key, usedforsecurity=False).digest()[0]


def record_digest(key: bytes, value: bytes) -> bytes:
    """Return the 16 bytes that stand for a key with this value."""
    return sha256(len(key).to_bytes(4, "big") + key + value, usedforsecurity=False).digest()[:16]


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """Number and sums of the records of a range, or of several ranges together."""

    count: int = 0
    high: int = 0
    low: int = 0

    def __add__(self, added: RangeDigest) -> RangeDigest:
        return RangeDigest(self.count + added.count, (self.high + added.high) % _WRAP, (self.low + added.low) % _WRAP)

    @classmethod
    def of(cls, digests: Iterable[bytes]) -> RangeDigest:
        """Return the sum of digests of records."""
        numbers = [int.from_bytes(digest, "big") for digest in digests]
        low = sum(number % _WRAP for number in numbers)
        high = sum(number >> 64 for number in numbers)
        return cls(len(numbers), high % _WRAP, low % _WRAP)

    @classmethod
    def read(cls, count: int, sums: str) -> RangeDigest:
        """Return the digest of ``count`` records whose text is ``sums``. Raises ValueError."""
        return cls(count, *divmod(int(sums, 16), _WRAP))

    def __str__(self) -> str:
        """Both sums as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


@dataclass(slots=True)
class DirectoryDigest:
    """The digests of all ranges."""

    ranges: list[RangeDigest] = field(default_factory=lambda: [RangeDigest()] * RANGES)

    def add(self, number: int, digest: RangeDigest) -> None:
        """Add records to a range."""
        self.ranges[number] += digest

    def differing(self, compared: DirectoryDigest) -> list[int]:
        """Return the numbers of the ranges whose records differ."""
        pairs = zip(self.ranges, compared.ranges, strict=True)
        return [number for number, (digest, compared_digest) in enumerate(pairs) if digest != compared_digest]

    @property
    def total(self) -> RangeDigest:
        """The digest of all ranges together."""
        return sum(self.ranges, RangeDigest())


class Digester:
    """Adds up the digests of records, 2 µs each, by range. Owned by one thread."""

    def __init__(self) -> None:
        self._counts = [0] * RANGES
        self._highs = [0] * RANGES
        self._lows = [0] * RANGES

    def add(self, key: bytes, value: bytes) -> None:
        """Add a record."""
        # range_of and record_digest spelt out: two more calls would cost 8 %
        number = sha256(key, usedforsecurity=False).digest()[0]
        self.count(number, sha256(len(key).to_bytes(4, "big") + key + value, usedforsecurity=False).digest())

    def count(self, number: int, digest: bytes) -> None:
        """Add a record of a range by its digest."""
        high, low = _halves(digest)
        self._counts[number] += 1
        self._highs[number] += high
        self._lows[number] += low

    def result(self) -> DirectoryDigest:
        """Return the digests of the records that were added."""
        sums = zip(self._counts, self._highs, self._lows, strict=True)
        return DirectoryDigest([RangeDigest(count, high % _WRAP, low % _WRAP) for count, high, low in sums])

"""Digests of key ranges as rows, as tasks hand them on: both sums as bytes, for Spark has no unsigned numbers."""

from __future__ import annotations

from compactory.lookup.digest import Digester, RangeDigest

__all__ = ["digest_of", "digest_rows"]


def digest_rows(digester: Digester) -> list[tuple[int, int, bytes, bytes]]:
    """Number, count and both sums of each range that has records."""
    return [
        (number, each.count, each.high.to_bytes(8, "big"), each.low.to_bytes(8, "big"))
        for number, each in enumerate(digester.result().ranges)
        if each.count
    ]


def digest_of(count: int, high: bytes, low: bytes) -> RangeDigest:
    """What a row says of its range."""
    return RangeDigest(count, int.from_bytes(high, "big"), int.from_bytes(low, "big"))

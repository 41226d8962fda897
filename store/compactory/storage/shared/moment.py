"""A shared topic as a process sees it at one moment: the shared copy, and its own changes over that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from heapq import merge
from typing import Any

from compactory.errors import CompactoryError
from compactory.storage.ordered.database import Snapshot

__all__ = ["Moment", "long_item"]

_ABSENT = object()
_LONGEST = 511  # bytes of a key in LMDB
_LONG = b"\xff\xff"  # before the digest of a longer key, whose value begins with the key's length and the key
_first = lambda pair: pair[0]  # noqa: E731


def long_item(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    """Return key and value as they are kept."""
    if len(key) <= _LONGEST:
        return key, value
    kept = None if value is None else len(key).to_bytes(4, "little") + key + value
    return _LONG + sha256(key).digest(), kept


class Moment(Snapshot):
    """One state, for any thread; it never changes. ``get`` returns the value of a key, or None.

    ``transaction`` reads the shared copy (None: there is none yet), ``shared`` is its ``get``; ``changes`` are this
    process' own, None where it deleted a key.
    """

    def __init__(
        self, transaction: Any, changes: dict[bytes, bytes | None], failed: Callable[[Exception], CompactoryError]
    ) -> None:
        self.changes = changes
        self.failed = failed
        self.transaction = transaction
        self.shared: Callable[[bytes], bytes | None] = _nothing if transaction is None else transaction.get
        self.get = _getter(self.shared, changes)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _ in self.pairs(start, stop))

    def pairs(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            changes = self.changes
            own = sorted((key, value) for key, value in changes.items() if value is not None and start <= key < stop)
            shared = self._shared(start, stop) if self.transaction is not None else iter(())
            if not changes:
                yield from shared
                return
            yield from merge(own, (pair for pair in shared if pair[0] not in changes), key=_first)
        except GeneratorExit:
            raise
        except Exception as error:
            raise self.failed(error) from error

    def _shared(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        long = sorted(pair for pair in self._long() if start <= pair[0] < stop)
        short = self._short(start, stop)
        return merge(long, short, key=_first) if long else short

    def _short(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self.transaction.cursor()
        if cursor.set_range(start[:_LONGEST]):
            for key, value in cursor.iternext():
                if key >= stop:
                    return
                if key >= start:
                    yield key, value

    def _long(self) -> Iterator[tuple[bytes, bytes]]:
        cursor = self.transaction.cursor()
        if cursor.set_range(_LONG):
            for _, kept in cursor.iternext():
                yield _unpacked(kept)


def _getter(
    shared: Callable[[bytes], bytes | None], changes: Mapping[bytes, bytes | None]
) -> Callable[[bytes], bytes | None]:
    def get(key: bytes) -> bytes | None:
        if changes:
            found = changes.get(key, _ABSENT)
            if found is not _ABSENT:
                return found  # type: ignore[return-value]
        if len(key) <= _LONGEST:
            return shared(key)
        kept = shared(long_item(key, None)[0])
        return None if kept is None else _unpacked(kept)[1]

    return get


def _nothing(_key: bytes) -> None:
    return None


def _unpacked(kept: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(kept[:4], "little")
    return kept[4:end], kept[end:]

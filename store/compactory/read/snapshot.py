"""A snapshot of a directory's records, by which stores are compared.

A store holds the newest good record of each topic key whose value does not say that it was deleted. That is what a
topic, read to the same positions under the same definition, must come to, byte by byte; a tombstone, a value
that says ``active: false`` and an envelope that says deleted are records of neither. A key whose newest record is bad
is left out of digests too: what its lookups find is an older value, which the topic need not have any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Self

from compactory.codec.packed_record import ORIGIN_SIZE, unpack_origin
from compactory.directory import Directory
from compactory.read.digest import Digester, DirectoryDigest, range_of, record_digest
from compactory.storage.backend import ReadSnapshot

__all__ = ["DirectorySnapshot", "SnapshotRecord"]

_SLICE = 256  # records between two pauses: half a millisecond
_VALUE = slice(None, -ORIGIN_SIZE)


class SnapshotRecord(NamedTuple):
    """A record that a directory holds."""

    key: bytes
    value: bytes
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def digest(self) -> bytes:
        """The digest of key and value."""
        return record_digest(self.key, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySnapshot:
    """A directory as it was at ``positions``: every record before them is applied, and no later one.

    For one reader in any thread; lookups and the reading of the topic go on. A context manager: closing
    or dropping it frees its data in memory or on disk. ``pause`` is called after each slice of work, to let other
    threads run. Raises StoreClosed if the store was closed meanwhile.
    """

    directory: Directory[Any]
    topic_id: str | None
    positions: Mapping[int, int]
    """Partition → next offset to read."""
    bad: frozenset[bytes]
    """Topic keys whose newest record is bad."""
    revision: int
    """The same for two snapshots with the same records; their bad keys may differ."""
    entries: ReadSnapshot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.entries.close()

    def digest(self, pause: Callable[[], object] = lambda: None) -> DirectoryDigest:
        """Return the digests of all ranges; takes 2 µs a record."""
        digester = Digester()
        add, bad = digester.add, self.bad
        for part in self._slices(pause):
            for key, packed in part:
                if key not in bad:
                    add(key, packed[_VALUE])
        return digester.result()

    def records(self, ranges: Collection[int], pause: Callable[[], object] = lambda: None) -> Iterator[SnapshotRecord]:
        """Yield the records of these ranges, those of bad keys too, in no fixed order. Reads every record."""
        for part in self._slices(pause):
            for key, packed in part:
                if range_of(key) in ranges:
                    yield SnapshotRecord(key, packed[_VALUE], *unpack_origin(packed))

    def _slices(self, pause: Callable[[], object]) -> Iterator[list[tuple[bytes, bytes]]]:
        pairs = self.entries.pairs()
        while part := list(islice(pairs, _SLICE)):
            yield part
            pause()

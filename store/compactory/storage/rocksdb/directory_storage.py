"""The read side of a directory on disk: single lookups, and everything else from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from compactory.codec.decoding import Term
from compactory.storage.backend import DirectoryStorage, ReadSnapshot
from compactory.storage.lookup_mapping import LookupMapping
from compactory.storage.rocksdb.contents import Contents
from compactory.storage.rocksdb.database import RocksDatabase, RocksSnapshot
from compactory.storage.rocksdb.key_space import KeySpace, RocksPostings
from compactory.storage.rocksdb.keys import after, posting_term, term_of, term_prefix

__all__ = ["Entries", "RocksDirectoryStorage"]


class RocksDirectoryStorage(DirectoryStorage):
    """The storage of one directory in RocksDB."""

    def __init__(self, contents: Contents, directory: str) -> None:
        self._contents = contents
        self._directory = directory
        self._part = contents.part(directory, "entries")
        self.entries: Mapping[bytes, bytes] = Entries(contents.database, self._part.prefix, self._part.size)

    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        return self._contents.part(self._directory, part)

    def postings(self, index: str) -> RocksPostings:
        return self._contents.postings(self._directory, index)

    def reading(self) -> RocksReadSnapshot:
        return RocksReadSnapshot(self._contents, self._directory, self._part)

    def snapshot(self, part: str, _term_of: Callable[[str, bytes], Term | None]) -> RocksReadSnapshot:
        """Return a snapshot of a mapping, as committed last."""
        return RocksReadSnapshot(self._contents, self._directory, self._contents.part(self._directory, part))

    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition; kept, not counted."""
        return dict(self._part.sizes)


class Entries(LookupMapping):
    """Lookup key → packed record, as committed last or of a snapshot. For any thread."""

    def __init__(self, source: RocksDatabase | RocksSnapshot, prefix: bytes, size: Callable[[], int]) -> None:
        self._source = source
        self._prefix = prefix
        self._size = size

    def get(self, key: bytes, default: Any = None) -> Any:
        try:
            packed = self._source.get(self._prefix + key)
        except Exception as error:
            raise self._source.failed(error) from error
        return default if packed is None else packed

    def __len__(self) -> int:
        return self._size()

    def __iter__(self) -> Iterator[bytes]:
        return _keys(self._source.snapshot(), self._prefix)


class RocksReadSnapshot(ReadSnapshot):
    """A snapshot of a directory, as committed. For any thread."""

    def __init__(self, contents: Contents, directory: str, part: KeySpace) -> None:
        self._sizes = dict(part.sizes)
        size = sum(self._sizes.values())
        self._contents = contents
        self._directory = directory
        self._prefix = part.prefix
        self._snapshot = contents.database.snapshot()
        self.entries: Mapping[bytes, bytes] = Entries(self._snapshot, part.prefix, lambda: size)

    def sizes(self) -> dict[int, int]:
        return self._sizes

    def close(self) -> None:
        self._snapshot.release()

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return _keys(self._snapshot, self._prefix, start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        width = len(self._prefix)
        pairs = self._snapshot.pairs(*_bounds(self._prefix, start or b"", stop))
        return ((key[width:], packed) for key, packed in pairs)

    def keys_of_term_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return _keys(self._snapshot, self._index(index) + term_prefix(term), start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        """Yield every term once; a term with many keys costs no more than a page of them."""
        return _terms(self._snapshot, self._index(index))

    def _index(self, index: str) -> bytes:
        return self._contents.postings(self._directory, index).prefix


def _bounds(prefix: bytes, start: bytes, stop: bytes | None) -> tuple[bytes, bytes]:
    return prefix + start, after(prefix) if stop is None else prefix + stop


def _keys(snapshot: RocksSnapshot, prefix: bytes, start: bytes = b"", stop: bytes | None = None) -> Iterator[bytes]:
    """Yield the keys behind a prefix, without it."""
    width = len(prefix)
    return (key[width:] for key in snapshot.keys(*_bounds(prefix, start, stop)))


def _terms(snapshot: RocksSnapshot, prefix: bytes) -> Iterator[Term]:
    start, stop, width = prefix, after(prefix), len(prefix)
    while page := snapshot.page(start, stop):
        prefixes = dict.fromkeys(posting_term(key[width:]) for key in page)
        yield from map(term_of, prefixes)
        start = after(prefix + posting_term(page[-1][width:]))

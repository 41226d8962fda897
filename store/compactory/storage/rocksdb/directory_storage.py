"""What readers see of a directory on disk: lookups at once, everything else from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from compactory.codec.decoding import Term
from compactory.storage.rocksdb.database import Database, Snapshot
from compactory.storage.rocksdb.key_space import KeySpace, RocksPostings
from compactory.storage.rocksdb.keys import after, posting_term, term_of, term_prefix

__all__ = ["Contents", "Entries", "RocksDirectoryStorage", "Still"]


class Contents(Protocol):
    """What a directory storage asks of its topic storage."""

    database: Database

    def part(self, directory: str, name: str) -> KeySpace:
        """Return a mapping of a directory, the same one each time."""
        ...

    def postings(self, directory: str, index: str) -> RocksPostings:
        """Return the writing side of an index, the same one each time."""
        ...


class RocksDirectoryStorage:
    """The place of one directory. Reads are from what was committed; a snapshot serves those of several keys."""

    def __init__(self, contents: Contents, directory: str) -> None:
        self._contents = contents
        self._directory = directory
        self._part = contents.part(directory, "entries")
        self.entries = Entries(contents.database, self._part)

    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        """Return a mapping for the writing thread."""
        return self._contents.part(self._directory, part)

    def postings(self, index: str) -> RocksPostings:
        """Return the writing side of an index."""
        return self._contents.postings(self._directory, index)

    def snapshot(self) -> Still:
        """Return the committed state of this moment."""
        return Still(self._contents, self._directory, self._part)

    def still(self, part: str) -> RocksStill:
        """Return a mapping as it was committed last."""
        return RocksStill(self._contents.database.snapshot(), self._contents.part(self._directory, part).prefix)

    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition; kept, not counted."""
        return dict(self._part.sizes)

    def all_keys(self) -> Iterator[bytes]:
        """Yield the lookup keys as they were when this was called."""
        return self.snapshot().all_keys()

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys between the two as they were when this was called, in order."""
        return self.snapshot().range(start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield lookup keys and cells as they were when this was called, in order."""
        return self.snapshot().pairs(start, stop)

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the lookup keys filed under a term."""
        return self.snapshot().names(index, term)

    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys filed under a term between the two, in order."""
        return self.snapshot().names_between(index, term, start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        """Yield the terms as they were when this was called."""
        return self.snapshot().terms(index)


class Entries(Mapping[bytes, bytes]):
    """Lookup key → cell, as committed. For any thread."""

    def __init__(self, database: Database, part: KeySpace) -> None:
        self._database = database
        self._part = part
        self._prefix = part.prefix

    def __getitem__(self, name: bytes) -> bytes:
        try:
            cell = self._database.get(self._prefix + name)
        except Exception as error:
            raise self._database.failed(error) from error
        if cell is None:
            raise KeyError(name)
        return cell

    def get(self, name: bytes, default: Any = None) -> Any:
        """Return the cell, or ``default``."""
        try:
            cell = self._database.get(self._prefix + name)
        except Exception as error:
            raise self._database.failed(error) from error
        return default if cell is None else cell

    def __contains__(self, name: object) -> bool:
        return isinstance(name, bytes) and self.get(name) is not None

    def __len__(self) -> int:
        return sum(self._part.sizes.values())

    def __iter__(self) -> Iterator[bytes]:
        return _keys(self._database.snapshot(), self._prefix)


class Still:
    """A directory as it was committed at one moment. For any thread."""

    def __init__(self, contents: Contents, directory: str, part: KeySpace) -> None:
        self._contents = contents
        self._directory = directory
        self._prefix = part.prefix
        self._sizes = part.sizes
        self._snapshot = contents.database.snapshot()
        self.entries: Mapping[bytes, bytes] = StillEntries(self._snapshot, part.prefix, sum(part.sizes.values()))

    def all_keys(self) -> Iterator[bytes]:
        """Yield the lookup keys."""
        return _keys(self._snapshot, self._prefix)

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys between the two, in order."""
        return _last_record_epochs(self._snapshot.keys(self._prefix + start, self._end(stop)), len(self._prefix))

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield lookup keys and cells between the two, in order."""
        width = len(self._prefix)
        found = self._snapshot.pairs(self._prefix + (start or b""), self._end(stop))
        return ((key[width:], cell) for key, cell in found)

    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition."""
        return dict(self._sizes)

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the lookup keys filed under a term."""
        prefix = self._index(index) + term_prefix(term)
        return list(_keys(self._snapshot, prefix))

    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys filed under a term between the two, in order."""
        prefix = self._index(index) + term_prefix(term)
        end = after(prefix) if stop is None else prefix + stop
        return _last_record_epochs(self._snapshot.keys(prefix + start, end), len(prefix))

    def terms(self, index: str) -> Iterator[Term]:
        """Yield every term once; one under which many keys are filed costs no more than a page of them."""
        prefix = self._index(index)
        return _terms(self._snapshot, prefix)

    def _end(self, stop: bytes | None) -> bytes:
        return after(self._prefix) if stop is None else self._prefix + stop

    def _index(self, index: str) -> bytes:
        return self._contents.postings(self._directory, index).prefix


class RocksStill:
    """One mapping of a snapshot, which needs nobody to keep anything."""

    def __init__(self, snapshot: Snapshot, prefix: bytes) -> None:
        self._snapshot = snapshot
        self._prefix = prefix
        self.closed = False

    def keep(self, names: Iterable[bytes | None]) -> None:
        """The snapshot does."""

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield names and values as they were, in order."""
        width = len(self._prefix)
        return ((key[width:], value) for key, value in self._snapshot.pairs(self._prefix, after(self._prefix)))

    def close(self) -> None:
        """Let go of the snapshot."""
        self.closed = True
        self._snapshot.release()


class StillEntries(Mapping[bytes, bytes]):
    """The entries of a snapshot."""

    def __init__(self, snapshot: Snapshot, prefix: bytes, size: int) -> None:
        self._snapshot = snapshot
        self._prefix = prefix
        self._size = size

    def __getitem__(self, name: bytes) -> bytes:
        cell = self._snapshot.get(self._prefix + name)
        if cell is None:
            raise KeyError(name)
        return cell

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return _keys(self._snapshot, self._prefix)


def _keys(snapshot: Snapshot, prefix: bytes) -> Iterator[bytes]:
    return _last_record_epochs(snapshot.keys(prefix, after(prefix)), len(prefix))


def _last_record_epochs(keys: Iterator[bytes], width: int) -> Iterator[bytes]:
    return (key[width:] for key in keys)


def _terms(snapshot: Snapshot, prefix: bytes) -> Iterator[Term]:
    start, stop, width = prefix, after(prefix), len(prefix)
    while page := snapshot.page(start, stop):
        found = dict.fromkeys(posting_term(key[width:]) for key in page)
        yield from map(term_of, found)
        start = after(prefix + posting_term(page[-1][width:]))

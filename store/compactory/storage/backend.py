"""The interface between the engine and the backends, which keep entries in memory or on disk.

A backend makes a `TopicStorage` per topic: one generation of its records, with the checkpoint up to which they were
read. In it each directory has a `DirectoryStorage`. One thread writes a topic storage and commits it batch by batch.
Readers see committed changes (`Reading`). A backend overrides the methods with a body only where it needs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from compactory.codec.decoding import Term
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.lazy_load import LazyLoad
from compactory.storage.saved_file import Bucket

__all__ = ["Backend", "DirectoryStorage", "Postings", "ReadSnapshot", "Reading", "SaveSnapshot", "TopicStorage"]


class LookupMapping(Mapping[bytes, bytes]):
    """A read-only mapping whose ``get`` is all that a lookup needs. No value is None."""

    @abstractmethod
    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""

    def __getitem__(self, key: bytes) -> bytes:
        value: bytes | None = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.get(key) is not None


class Postings(ABC):
    """The writing side of one index: term → lookup keys. For the writing thread."""

    @abstractmethod
    def add(self, term: Term, key: bytes) -> None:
        """Add a key to a term. Adding it again changes nothing."""

    @abstractmethod
    def discard(self, term: Term, key: bytes) -> None:
        """Remove a key from a term, if it is there."""

    @abstractmethod
    def extend(self, terms: Sequence[Term | None], keys: Sequence[bytes]) -> None:
        """Add many keys, each to its term; skip terms of None."""


class Reading(ABC):
    """The committed state of one directory, for readers in any thread."""

    entries: Mapping[bytes, bytes]
    """Lookup key → packed record: for ``get``, ``in`` and ``len``. To go over the keys there is `all_keys`."""

    @property
    def loaded_entries(self) -> Mapping[bytes, bytes]:
        """The entries that are in memory already: the fastest mapping. `entries` has all."""
        return self.entries

    def all_keys(self) -> Iterator[bytes]:
        """Yield the lookup keys of the time of the call, in any order."""
        return self.range(b"", None)

    @abstractmethod
    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys from ``start`` to before ``stop`` (None: to the last), in the order of their bytes."""

    @abstractmethod
    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield lookup keys and packed records: all in any order, or from ``start`` on as `range` does.

        A live reading skips entries that were deleted since the call.
        """

    @abstractmethod
    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition."""

    def keys_of_term(self, index: str, term: Term) -> list[bytes]:
        """Return the lookup keys that have a term."""
        return list(self.keys_of_term_between(index, term, b"", None))

    @abstractmethod
    def keys_of_term_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys that have a term, as `range` does. The first ones come without sorting all."""

    @abstractmethod
    def terms(self, index: str) -> Iterator[Term]:
        """Yield every term that a lookup key has, each once."""


class ReadSnapshot(Reading):
    """The immutable state of a mapping, while the writing thread goes on. Of entries, readers can use it as a storage.

    Raises StoreClosed if the close of the store removed it.
    """

    def reading(self) -> Self:
        """Return itself: it does not change."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Free the snapshot; it must not be read any more. Without `close`, garbage collection frees it."""


class DirectoryStorage(ABC):
    """The storage of one directory. `entries`, `sizes` and `reading` are for readers."""

    entries: Mapping[bytes, bytes]
    """Lookup key → packed record, as committed last; see `Reading.entries`."""

    @property
    def loaded_entries(self) -> Mapping[bytes, bytes]:
        """The entries that are in memory already; see `Reading.loaded_entries`."""
        return self.entries

    @abstractmethod
    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition."""

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory for keys, values and indexes; empty where they are on disk. For any thread."""
        return {}

    @abstractmethod
    def reading(self) -> Reading:
        """Return the present committed state. Memory returns the live storage."""

    @abstractmethod
    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        """Return the mapping called ``part`` (``entries``, ``owners`` …) as the writing thread sees and changes it.

        The writer sees its own changes at once, readers those of ``entries`` after `TopicStorage.commit` (in memory: at
        once).
        """

    @abstractmethod
    def postings(self, index: str) -> Postings:
        """Return the writing side of an index."""

    def lazy_load(
        self,
        _take: Callable[[Bucket], None],
        _end: Callable[[], None],
        /,
        *,
        keyed: bool,  # noqa: ARG002
        indexes: int,  # noqa: ARG002
    ) -> LazyLoad | None:
        """Begin to load the entries of a saved file bucket by bucket, while readers use it. Return None without a file.

        ``_take`` gets each bucket, ``_end`` is called after the last. The file must fit ``keyed`` and the number of
        ``indexes``. Raises BackendCorrupt.
        """
        return None

    @abstractmethod
    def snapshot(self, part: str, term_of: Callable[[str, bytes], Term | None], /) -> ReadSnapshot:
        """Return a snapshot of a mapping. The writing thread calls it, while everything is committed.

        ``term_of`` returns the term that a packed record has in an index.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveSnapshot:
    """A snapshot of a table, to be saved in a file.

    ``records`` are by topic key, ``shared`` has the metadata of those whose lookup key several topic keys have.
    ``columns`` gives the bucket of some topic keys and packed records. For any thread.
    """

    directory: str
    keyed: bool
    indexes: int
    records: ReadSnapshot
    shared: frozenset[bytes]
    parts: Mapping[str, Mapping[bytes, bytes]]
    columns: Callable[[Sequence[bytes], Sequence[bytes]], Bucket]


class TopicStorage(ABC):
    """A storage of one generation of a topic's records. Belongs to one writing thread; `Reading` is for all threads."""

    persistent: bool
    """True if `commit` stores a checkpoint."""
    checkpoint: Checkpoint | None
    """The checkpoint with which it was opened; None if it was empty."""

    @abstractmethod
    def directory_storage(self, directory: str) -> DirectoryStorage:
        """Return the storage of a directory, empty if it is new."""

    def commit(self, _checkpoint: Checkpoint, /) -> None:  # noqa: B027 (in memory all is visible already)
        """Make all changes since the last commit visible together with their checkpoint, all or nothing."""

    def flush(self) -> None:  # noqa: B027 (memory has nothing to do)
        """Bring to disk what was committed."""

    def save(self, _committed: Checkpoint, _take: Callable[[], Sequence[SaveSnapshot]], /) -> None:  # noqa: B027
        """Begin to write the last commit into a file, if the backend saves files and the last one is old."""

    def figures(self) -> Mapping[str, float]:
        """Return figures about its size and work, for metrics."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Free all resources; files stay on disk. Called once, after the last write."""


class Backend(ABC):
    """Makes topic storages. `open`, `fresh` and `promote` are called by one thread at a time."""

    @abstractmethod
    def open(self, topic: str) -> TopicStorage:
        """Return the topic storage of a topic that was promoted last, or an empty one. Once per topic and life."""

    @abstractmethod
    def fresh(self, topic: str) -> TopicStorage:
        """Return a new, empty topic storage beside the served one."""

    def promote(self, _topic: str, _storage: TopicStorage, /) -> None:  # noqa: B027 (memory has nothing to do)
        """Make `open` return this topic storage from now on. The former one is removed after its last reader."""

    def figures(self) -> Mapping[str, float]:
        """Return figures about the resources that all topic storages share, for metrics."""
        return {}

    def close(self) -> None:  # noqa: B027 (nor here)
        """Free the resources of the backend. Called once, after the topic storages were closed."""

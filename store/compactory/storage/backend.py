"""Where a store keeps what it has read: the seam between the engine and memory, or a disk.

A backend lends a `TopicStorage` per topic: one generation of everything that was read of it, with the position up to
which it was read. Within it each directory has a `DirectoryStorage`. One thread writes a topic storage and commits it
run by run; what readers see (`Reading`) is what was committed. Methods with a body suit a backend to which they do not
matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Self

from compactory.codec.decoding import Term
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.filling import Filling
from compactory.storage.saved_file import Bucket

__all__ = ["Backend", "Cut", "DirectoryStorage", "Frozen", "Postings", "Reading", "TopicStorage"]


class Postings(ABC):
    """Which lookup keys are filed under which terms of one index. For the writing thread."""

    @abstractmethod
    def add(self, term: Term, name: bytes) -> None:
        """File a key under a term, beside those that are there. Filing it twice is once."""

    @abstractmethod
    def discard(self, term: Term, name: bytes) -> None:
        """Take a key out from under a term, if it is there."""

    @abstractmethod
    def extend(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        """File many keys; a term of None files nothing."""


class Reading(ABC):
    """The committed state of one directory, for readers in any thread."""

    entries: Mapping[bytes, bytes]
    """Lookup key → packed record: for ``get``, ``in`` and ``len``. To go over the keys there is `all_keys`."""

    @property
    def at_hand(self) -> Mapping[bytes, bytes]:
        """The mapping to ask first, as it is quickest; `entries` has what it lacks."""
        return self.entries

    def all_keys(self) -> Iterator[bytes]:
        """Yield the lookup keys as they were when this was called, in no order that could be relied on."""
        return self.range(b"", None)

    @abstractmethod
    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys from ``start`` to before ``stop`` (None: to the last), in the order of their bytes."""

    @abstractmethod
    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield lookup keys and packed records: all in no order to rely on, or from ``start`` on as `range` does.

        Entries that were deleted since this was called are left out where the reading is not a snapshot.
        """

    @abstractmethod
    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition."""

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the lookup keys filed under a term."""
        return list(self.names_between(index, term, b"", None))

    @abstractmethod
    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys filed under a term as `range` does; the first ones cost no sorting of all of them."""

    @abstractmethod
    def terms(self, index: str) -> Iterator[Term]:
        """Yield every term under which something is filed, each once."""


class Frozen(Reading):
    """A mapping at one moment. Of entries, all that readers ask of a directory storage. The writing thread goes on.

    Raises StoreClosed where it went with the store.
    """

    def reading(self) -> Self:
        """Return itself: it does not change."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Let go of it: it is not read any more. Dropping it does the same."""


class DirectoryStorage(ABC):
    """Where the table of one directory keeps its entries. `entries`, `sizes` and `reading` are for readers."""

    entries: Mapping[bytes, bytes]
    """As those of `Reading`, as committed last."""

    @property
    def at_hand(self) -> Mapping[bytes, bytes]:
        """As that of `Reading`."""
        return self.entries

    @abstractmethod
    def sizes(self) -> dict[int, int]:
        """Return how many entries came from each partition."""

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory for keys, values and indexes; empty where they are on disk. For any thread."""
        return {}

    @abstractmethod
    def reading(self) -> Reading:
        """Return the committed state of this moment; memory has none to give and returns the live one."""

    @abstractmethod
    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        """Return the mapping called ``part`` (``entries``, ``owners`` …) as the writing thread sees and changes it.

        The writer sees its own changes at once, readers those of ``entries`` after `TopicStorage.commit` (in memory: at
        once).
        """

    @abstractmethod
    def postings(self, index: str) -> Postings:
        """Return the writing side of an index."""

    def fill(
        self,
        _take: Callable[[Bucket], None],
        _done: Callable[[], None],
        /,
        *,
        keyed: bool,  # noqa: ARG002
        indexes: int,  # noqa: ARG002
    ) -> Filling | None:
        """Have what was saved in a file taken over bucket by bucket, while it is read; None where there is none.

        ``_take`` gets each bucket, ``_done`` is called after the last. ``keyed`` and the number of ``indexes`` are what
        the file has to have. Raises BackendCorrupt.
        """
        return None

    @abstractmethod
    def frozen(self, part: str, term_of: Callable[[str, bytes], Term | None], /) -> Frozen:
        """Return a mapping as it is now; called by the writing thread, while everything is committed.

        ``term_of`` returns the term that a packed record has in an index.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A table at one moment, to be saved in a file.

    ``records`` are by topic key, ``shared`` has the metadata of those whose lookup key several topic keys have.
    ``columns`` gives the bucket of some topic keys and packed records. For any thread.
    """

    directory: str
    keyed: bool
    indexes: int
    records: Frozen
    shared: frozenset[bytes]
    parts: Mapping[str, Mapping[bytes, bytes]]
    columns: Callable[[Sequence[bytes], Sequence[bytes]], Bucket]


class TopicStorage(ABC):
    """One generation of a topic's records. Belongs to one writing thread; `Reading` is for all threads."""

    persistent: bool
    """Whether `commit` does anything: where it does not, no checkpoint has to be made for it."""
    checkpoint: Checkpoint | None
    """How far the topic storage was read when it was opened; None where it begins empty."""

    @abstractmethod
    def directory_storage(self, directory: str) -> DirectoryStorage:
        """Return the place of a directory, empty if it is new."""

    def commit(self, _checkpoint: Checkpoint, /) -> None:  # noqa: B027 (in memory all is visible already)
        """Make all that was written since the last commit visible together with how far it goes, all or nothing."""

    def flush(self) -> None:  # noqa: B027 (memory has nothing to do)
        """Bring to disk what was committed."""

    def save(self, _committed: Checkpoint, _cuts: Callable[[], Sequence[Cut]], /) -> None:  # noqa: B027 (nor has a disk)
        """Begin to write what was committed last into a file, where the backend does that and it is time to."""

    def figures(self) -> Mapping[str, float]:
        """Return what there is to say of its size and work, for metrics."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; what is on disk stays there. Called once, after the last write."""


class Backend(ABC):
    """Lends topic storages. `open`, `fresh` and `promote` are called by one thread at a time."""

    @abstractmethod
    def open(self, topic: str) -> TopicStorage:
        """Return the topic storage of a topic that was promoted last, or an empty one. Once per topic and life."""

    @abstractmethod
    def fresh(self, topic: str) -> TopicStorage:
        """Return a new, empty topic storage, beside the one that is being served."""

    def promote(self, _topic: str, _storage: TopicStorage, /) -> None:  # noqa: B027 (memory has nothing to do)
        """Let a topic storage be what `open` returns from now on; the former one is removed after its last reader."""

    def figures(self) -> Mapping[str, float]:
        """Return figures about the resources that all topic storages share, for metrics."""
        return {}

    def close(self) -> None:  # noqa: B027 (nor here)
        """Release what the backend itself holds. Called once, after the topic storages were closed."""

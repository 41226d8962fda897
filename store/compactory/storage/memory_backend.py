"""The backend that keeps everything in dicts of this process; gone with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from heapq import nsmallest
from threading import Lock
from typing import Any

from compactory.codec.decoding import Term
from compactory.codec.packed_record import count_partitions
from compactory.errors import StoreClosed
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.ordered_keys import Ordered

__all__ = ["Memory"]

_PAGE = 500  # keys of a term that are put in order at a time


class Memory:
    """Everything in dicts: the fastest there is. Readers see each change at once, step by step."""

    def open(self, topic: str) -> MemoryTopicStorage:  # noqa: ARG002 (the protocol's)
        """Return an empty topic storage."""
        return MemoryTopicStorage()

    def fresh(self, topic: str) -> MemoryTopicStorage:
        """Return an empty topic storage."""
        return self.open(topic)

    def promote(self, topic: str, storage: Any) -> None:
        """Nothing to do: the former topic storage goes with its last reader."""

    def figures(self) -> dict[str, float]:
        """Nothing is shared."""
        return {}

    def close(self) -> None:
        """Nothing to release."""


class MemoryTopicStorage:
    """Dicts by directory."""

    checkpoint = None
    persistent = False

    def __init__(self) -> None:
        self._directories: dict[str, MemoryDirectoryStorage] = {}

    def directory_storage(self, directory: str) -> MemoryDirectoryStorage:
        """Return the directory's dicts."""
        return self._directories.setdefault(directory, MemoryDirectoryStorage())

    def commit(self, checkpoint: Checkpoint) -> None:
        """Nothing to do: readers saw it all."""

    def flush(self) -> None:
        """Nothing to do."""

    def figures(self) -> dict[str, float]:
        """Nothing to say."""
        return {}

    def close(self) -> None:
        """Free the entries, also where a view still refers to them."""
        for directory_storage in self._directories.values():
            directory_storage.clear()


class MemoryDirectoryStorage:
    """The dicts of one directory. Its keys are put in order by the first request for a range."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self._writing = _Entries(self.entries)
        self._parts: dict[str, MutableMapping[bytes, bytes]] = {"entries": self._writing}
        self._postings: dict[str, MemoryPostings] = {}
        self._order: Ordered | None = None
        self._ordering = Lock()  # one reader puts the keys in order
        self._cleared = False

    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        """Return a dict."""
        return self._parts.setdefault(part, {})

    def postings(self, index: str) -> MemoryPostings:
        """Return the index, which is both of its sides."""
        return self._postings.setdefault(index, MemoryPostings())

    def reading(self) -> MemoryDirectoryStorage:
        """Return the directory storage itself."""
        return self

    def snapshot(self, part: str) -> MemorySnapshot:
        """Return a dict as it is now: 8 bytes a name, and a name's former value once it changes."""
        return MemorySnapshot(self.entries if part == "entries" else self.mapping(part))

    def all_keys(self) -> Iterator[bytes]:
        """Yield the lookup keys of this moment."""
        return iter(list(self.entries))

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys of this moment between the two, in order."""
        order = self._order
        if order is None:
            with self._ordering:
                order = self._order = self._order or self._writing.in_order()
        return order.range(start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the lookup keys of this moment, and their packed records as far as they are there by then."""
        return self._still_there(self.all_keys() if start is None else self.range(start, stop))

    def _still_there(self, names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        get = self.entries.get
        for name in names:
            packed = get(name)
            if packed is not None:
                yield name, packed
            elif self._cleared:  # it must not look as if that had been all
                raise StoreClosed("the store was closed")

    def sizes(self) -> dict[int, int]:
        """Count the entries by partition: 0.1 s a million."""
        return count_partitions(list(self.entries.values()))

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the lookup keys filed under a term."""
        return self._postings[index].names(term)

    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys filed under a term in order, some hundred with each look at all of them."""
        names = self.names(index, term)
        while True:
            following = nsmallest(_PAGE, (name for name in names if start <= name and (stop is None or name < stop)))
            yield from following
            if len(following) < _PAGE:
                return
            start = following[-1] + b"\0"

    def terms(self, index: str) -> Iterator[Term]:
        """Yield the terms as they were when the iteration began."""
        return iter(list(self._postings[index].filed))

    def clear(self) -> None:
        """Let go of everything."""
        self._cleared = True
        for part in self._parts.values():
            part.clear()
        for postings in self._postings.values():
            postings.filed.clear()


class MemorySnapshot:
    """A dict as it was, by copy on write: what a name had before it changed is kept before that happens.

    The reader looks at the dict first and at what is kept second: what is not kept by then had not changed.
    """

    def __init__(self, part: Mapping[bytes, bytes]) -> None:
        self._part = part
        self._names = list(part)
        self._former: dict[bytes | None, bytes | None] = {}
        self.closed = False

    def keep(self, names: Iterable[bytes | None]) -> None:
        """Note what these names have, if it is the first time."""
        former, get = self._former, self._part.get
        for name in names:
            if name is not None and name not in former:
                former[name] = get(name)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield names and values as they were."""
        former, get = self._former, self._part.get
        for name in self._names:
            value = get(name)
            value = former.get(name, value)
            if value is None:
                raise StoreClosed("the store was closed, or its topic was read anew")
            yield name, value

    def close(self) -> None:
        """Keep nothing any more."""
        self.closed = True


class _Entries(MutableMapping[bytes, bytes]):
    """The writing side of the entries' dict: it also tells the order of the keys, once there is one."""

    def __init__(self, found: dict[bytes, bytes]) -> None:
        self._found = found
        self._order: Ordered | None = None
        self.get = found.get  # type: ignore[method-assign]  # at the speed of the dict
        self.keys = found.keys  # type: ignore[method-assign]

    def __getitem__(self, key: bytes) -> bytes:
        return self._found[key]

    def __setitem__(self, key: bytes, packed: bytes) -> None:
        if self._order is not None and key not in self._found:
            self._order.add(key)  # before the entry: an iteration over keys checks that each has one
        self._found[key] = packed

    def __delitem__(self, key: bytes) -> None:
        del self._found[key]
        if self._order is not None:
            self._order.discard(key)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def update(self, packed_records: Iterable[tuple[bytes, bytes]]) -> None:  # type: ignore[override]  # all that is needed
        """Put many entries."""
        if self._order is None:
            self._found.update(packed_records)
            return
        for key, packed in packed_records:
            self[key] = packed

    def clear(self) -> None:
        """Let go of everything."""
        self._found.clear()

    def in_order(self) -> Ordered:
        """Return the keys in order, kept in order from now on. Called by a reader, while the writer goes on."""
        self._order = order = Ordered()
        order.build(list(self._found))
        return order


class MemoryPostings:
    """Term → the one key that has it, or a set of keys: a set for each single key would cost 200 bytes."""

    def __init__(self) -> None:
        self.filed: dict[Term, bytes | set[bytes]] = {}

    def add(self, term: Term, name: bytes) -> None:
        """File a key under a term."""
        found = self.filed.get(term)
        if found is None:
            self.filed[term] = name
        elif isinstance(found, set):
            found.add(name)
        elif found != name:
            self.filed[term] = {found, name}

    def discard(self, term: Term, name: bytes) -> None:
        """Take a key out from under a term."""
        found = self.filed.get(term)
        if isinstance(found, set):
            found.discard(name)
            if not found:
                del self.filed[term]
        elif found == name:
            del self.filed[term]

    def extend(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        """File many keys; at the speed of C where no term is there yet, nor comes twice."""
        distinct = set(terms)
        if len(distinct) == len(terms) and self.filed.keys().isdisjoint(distinct):
            self.filed.update(zip(terms, names, strict=True))
            self.filed.pop(None, None)
            return
        for term, name in zip(terms, names, strict=True):
            if term is not None:
                self.add(term, name)

    def names(self, term: Term) -> list[bytes]:
        """Return the keys filed under a term."""
        found = self.filed.get(term)
        if found is None:
            return []
        return list(found) if isinstance(found, set) else [found]

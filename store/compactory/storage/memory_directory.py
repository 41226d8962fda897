"""A directory in dicts of this process: its entries, indexes and small parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from sys import getsizeof
from threading import Lock
from typing import Any, cast

from compactory.codec.decoding import Term
from compactory.codec.packed_record import count_by_partition
from compactory.errors import BackendCorrupt, StoreClosed
from compactory.storage.backend import DirectoryStorage, LookupMapping, Postings
from compactory.storage.dict_snapshot import Live, MemoryReadSnapshot, WrittenDict
from compactory.storage.file_saver import SMALL_PARTS
from compactory.storage.lazy_load import LazyLoad
from compactory.storage.ordered_keys import OrderedKeys
from compactory.storage.saved_file import Bucket, SavedDirectory

__all__ = ["MemoryDirectoryStorage", "MemoryPostings"]

_SAMPLE = 1000  # objects whose size is asked at each end
_MANY = 500  # keys of a term, above which they are kept in order once they were listed


class MemoryDirectoryStorage(Live, DirectoryStorage):
    """The dicts of one directory. The first request for a range sorts its keys.

    ``saved`` has the entries in a saved file; `lazy_load` reads it bucket by bucket. Calls that need more than single
    entries wait until all buckets were read.
    """

    def __init__(self, saved: SavedDirectory | None = None) -> None:
        self._written = {"entries": WrittenDict(), "owners": WrittenDict()}  # of these there are snapshots
        self._packed_records = self._written["entries"].packed_records
        self.entries: Mapping[bytes, bytes] = self._packed_records
        self._small: dict[str, dict[bytes, bytes]] = {}
        self._saved = saved
        self._lazy_load: LazyLoad | None = None
        if saved is not None:
            self._small |= {part: saved.part(part) for part in SMALL_PARTS}
        self._postings: dict[str, MemoryPostings] = {}
        self._order: OrderedKeys | None = None
        self._ordering = Lock()  # one reader puts the keys in order
        self.closed = False

    @property
    def loaded_entries(self) -> Mapping[bytes, bytes]:
        return self._packed_records

    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        return self._written[part] if part in self._written else self._small.setdefault(part, {})

    def postings(self, index: str) -> MemoryPostings:
        return self._postings.setdefault(index, MemoryPostings())

    def lazy_load(
        self, take: Callable[[Bucket], None], end: Callable[[], None], /, *, keyed: bool, indexes: int
    ) -> LazyLoad | None:
        saved, self._saved = self._saved, None
        if saved is None:
            raise BackendCorrupt("a saved file is malformed: it lacks a directory that it was saved with")
        saved.check(keyed=keyed, indexes=indexes)

        def end_lazy_load() -> None:
            self._lazy_load, self.entries = None, self._packed_records
            end()

        self._lazy_load = lazy_load = LazyLoad(saved, take, end_lazy_load)
        self.entries = LazyEntries(self._packed_records, lazy_load)
        lazy_load.load(0)  # its lookup keys are shared: which record answers depends on all of them
        return lazy_load

    def reading(self) -> MemoryDirectoryStorage:
        """Return the directory storage itself, once all of it is loaded."""
        if (lazy_load := self._lazy_load) is not None:
            lazy_load.load_all()
        return self

    def snapshot(self, part: str, term_of: Callable[[str, bytes], Term | None]) -> MemoryReadSnapshot:
        """Return a snapshot of a dict. It costs some microseconds, and a former value for each key that changes."""
        self.reading()
        return MemoryReadSnapshot(self, self._written[part], term_of)

    def all_keys(self) -> Iterator[bytes]:
        return iter(list(self.entries))

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        order = self._order
        if order is None:
            with self._ordering:
                order = self._order = self._order or self._written["entries"].in_order()
        return order.range(start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._existing_pairs(self.all_keys() if start is None else self.range(start, stop))

    def _existing_pairs(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        get = self.entries.get
        for key in keys:
            packed = get(key)
            if packed is not None:
                yield key, packed
            elif self.closed:  # it must not look as if that had been all
                raise StoreClosed("the store was closed")

    def memory(self) -> dict[str, int]:
        """Estimate the bytes of memory: the slots of dicts exactly, what is in them from samples."""
        parts = [*(written.packed_records for written in self._written.values()), *self._small.values()]
        indexes = [postings.postings for postings in self._postings.values()]
        return {
            "keys": sum(getsizeof(part) + _bytes_of(part) for part in parts),
            "values": _bytes_of(self._packed_records.values()),
            "indexes": sum(getsizeof(index) + _bytes_of(index) + _bytes_of(index.values(), set) for index in indexes),
        }

    def sizes(self) -> dict[int, int]:
        """Count the entries by partition: 0.1 s a million."""
        return count_by_partition(list(self.reading().entries.values()))

    def keys_of_term(self, index: str, term: Term) -> list[bytes]:
        return self._postings[index].lookup_keys(term)

    def keys_of_term_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return self._postings[index].keys_of_term_between(term, start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        return iter(list(self._postings[index].postings))

    def clear(self) -> None:
        self.closed = True
        if self._lazy_load is not None:
            self._lazy_load.stop()
        for part in (*self._written.values(), *self._small.values()):
            part.clear()
        for postings in self._postings.values():
            postings.clear()


class LazyEntries(LookupMapping):
    """Lookup key → packed record while the dict is being loaded. Missing keys are read from the file."""

    def __init__(self, entries: dict[bytes, bytes], lazy_load: LazyLoad) -> None:
        self._entries = entries
        self._lazy_load = lazy_load

    def get(self, key: bytes, default: Any = None) -> Any:
        packed = self._entries.get(key)
        if packed is None and (packed := self._lazy_load.find(key)) is None:
            packed = self._entries.get(key)  # it may have been loaded and changed between the two
        return default if packed is None else packed

    def __len__(self) -> int:
        with self._lazy_load.lock:
            return len(self._entries) + self._lazy_load.remaining

    def __iter__(self) -> Iterator[bytes]:
        self._lazy_load.load_all()
        return iter(self._entries)


def _bytes_of(objects: Collection[Any], kind: type = object) -> int:
    first, last = list(islice(objects, _SAMPLE)), list(islice(reversed(cast("Any", objects)), _SAMPLE))
    sizes = [getsizeof(sample) + 15 & ~15 if isinstance(sample, kind) else 0 for sample in first + last]
    return round(sum(sizes) / len(sizes) * len(objects)) if sizes else 0


class MemoryPostings(Postings):
    """Term → the one key that has it, or a set of keys: a set for each single key would cost 200 bytes.

    The keys of a term that has many are kept in order from the first `keys_of_term_between` on. `add` puts a key into
    ``postings`` first and into that order next. The order notes changes before it reads ``postings``, so it lacks none.
    """

    def __init__(self) -> None:
        self.postings: dict[Term, bytes | set[bytes]] = {}
        self._orders: dict[Term, OrderedKeys] = {}
        self._ordering = Lock()  # one reader puts the keys in order

    def add(self, term: Term, key: bytes) -> None:
        present = self.postings.get(term)
        if present is None:
            self.postings[term] = key
        elif isinstance(present, set):
            present.add(key)
        elif present != key:
            self.postings[term] = {present, key}
        if (order := self._orders.get(term)) is not None:
            order.add(key)

    def discard(self, term: Term, key: bytes) -> None:
        present = self.postings.get(term)
        if isinstance(present, set):
            present.discard(key)
            if not present:
                del self.postings[term]
        elif present == key:
            del self.postings[term]
        if (order := self._orders.get(term)) is not None:
            order.discard(key)
            if term not in self.postings:
                del self._orders[term]

    def extend(self, terms: Sequence[Term | None], keys: Sequence[bytes]) -> None:
        """Add many keys; fast if all terms are new and distinct."""
        distinct = set(terms)
        if len(distinct) == len(terms) and self.postings.keys().isdisjoint(distinct):
            self.postings.update(zip(terms, keys, strict=True))
            self.postings.pop(None, None)
            for term in list(self._orders):
                if term in distinct:
                    self._orders[term].add(keys[terms.index(term)])
            return
        for term, key in zip(terms, keys, strict=True):
            if term is not None:
                self.add(term, key)

    def lookup_keys(self, term: Term) -> list[bytes]:
        present = self.postings.get(term)
        if present is None:
            return []
        return list(present) if isinstance(present, set) else [present]

    def keys_of_term_between(self, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        order = self._in_order(term)
        if order is not None:
            return order.range(start, stop)
        return iter(sorted(key for key in self.lookup_keys(term) if start <= key and (stop is None or key < stop)))

    def clear(self) -> None:
        self.postings.clear()
        self._orders.clear()

    def _in_order(self, term: Term) -> OrderedKeys | None:
        """Return the keys of a term that has many, kept in order from now on."""
        with self._ordering:
            order = self._orders.get(term)
            keys = self.postings.get(term)
            if order is None and isinstance(keys, set) and len(keys) > _MANY:
                order = self._orders[term] = OrderedKeys()
                order.build(self.lookup_keys(term))
            return order

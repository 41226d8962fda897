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
from compactory.storage.backend import DirectoryStorage, Postings
from compactory.storage.filling import Filling, FillingEntries
from compactory.storage.frozen import FrozenReading, Live, WrittenDict
from compactory.storage.ordered_keys import Ordered
from compactory.storage.saved_file import Bucket, SavedDirectory
from compactory.storage.saving import SMALL_PARTS

__all__ = ["MemoryDirectoryStorage", "MemoryPostings"]

_SAMPLE = 1000  # objects whose size is asked at each end
_MANY = 500  # keys of a term, above which they are kept in order once they were listed


class MemoryDirectoryStorage(Live, DirectoryStorage):
    """The dicts of one directory. Its keys are put in order by the first request for a range.

    ``saved`` is what a file has of it: `fill` takes it over bucket by bucket. Calls that need more than single entries
    wait until all of it was taken over.
    """

    def __init__(self, saved: SavedDirectory | None = None) -> None:
        self._written = {"entries": WrittenDict(), "owners": WrittenDict()}  # of these there are snapshots
        self._found = self._written["entries"].found
        self.entries: Mapping[bytes, bytes] = self._found
        self._small: dict[str, dict[bytes, bytes]] = {}
        self._saved = saved
        self._filling: Filling | None = None
        if saved is not None:
            self._small |= {part: saved.part(part) for part in SMALL_PARTS}
        self._postings: dict[str, MemoryPostings] = {}
        self._order: Ordered | None = None
        self._ordering = Lock()  # one reader puts the keys in order
        self.closed = False

    @property
    def at_hand(self) -> Mapping[bytes, bytes]:
        """The dict, also while it is being filled."""
        return self._found

    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        """Return a dict, or its writing side."""
        return self._written[part] if part in self._written else self._small.setdefault(part, {})

    def postings(self, index: str) -> MemoryPostings:
        """Return the index, which is both of its sides."""
        return self._postings.setdefault(index, MemoryPostings())

    def fill(
        self, take: Callable[[Bucket], None], done: Callable[[], None], /, *, keyed: bool, indexes: int
    ) -> Filling | None:
        saved, self._saved = self._saved, None
        if saved is None:
            raise BackendCorrupt("a saved file makes no sense: it lacks a directory that it was saved with")
        saved.check(keyed=keyed, indexes=indexes)

        def filled() -> None:
            self._filling, self.entries = None, self._found
            done()

        self._filling = filling = Filling(saved, take, filled)
        self.entries = FillingEntries(self._found, filling)
        filling.fill_shared()
        return filling

    def reading(self) -> MemoryDirectoryStorage:
        """Return the directory storage itself, when all of it is there."""
        if (filling := self._filling) is not None:
            filling.fill_all()
        return self

    def frozen(self, part: str, term_of: Callable[[str, bytes], Term | None]) -> FrozenReading:
        """Return a dict as it is now: some microseconds, and a former value for each key that changes."""
        self.reading()
        return FrozenReading(self, self._written[part], term_of)

    def all_keys(self) -> Iterator[bytes]:
        return iter(list(self.entries))

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        order = self._order
        if order is None:
            with self._ordering:
                order = self._order = self._order or self._written["entries"].in_order()
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
            elif self.closed:  # it must not look as if that had been all
                raise StoreClosed("the store was closed")

    def memory(self) -> dict[str, int]:
        """Estimate the bytes of memory: the slots of dicts exactly, what is in them from samples."""
        parts = [*(written.found for written in self._written.values()), *self._small.values()]
        indexes = [postings.filed for postings in self._postings.values()]
        return {
            "keys": sum(getsizeof(part) + _bytes_of(part) for part in parts),
            "values": _bytes_of(self._found.values()),
            "indexes": sum(getsizeof(filed) + _bytes_of(filed) + _bytes_of(filed.values(), set) for filed in indexes),
        }

    def sizes(self) -> dict[int, int]:
        """Count the entries by partition: 0.1 s a million."""
        return count_by_partition(list(self.reading().entries.values()))

    def names(self, index: str, term: Term) -> list[bytes]:
        return self._postings[index].names(term)

    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return an iterator over the lookup keys filed under a term, in order, as they are now."""
        return self._postings[index].names_between(term, start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        """Yield the terms as they were when the iteration began."""
        return iter(list(self._postings[index].filed))

    def clear(self) -> None:
        """Let go of everything."""
        self.closed = True
        if self._filling is not None:
            self._filling.end()
        for part in (*self._written.values(), *self._small.values()):
            part.clear()
        for postings in self._postings.values():
            postings.clear()


def _bytes_of(objects: Collection[Any], kind: type = object) -> int:
    """Return the bytes of objects of a kind, from the first and the last thousand; one call of C for each."""
    first, last = list(islice(objects, _SAMPLE)), list(islice(reversed(cast("Any", objects)), _SAMPLE))
    sizes = [getsizeof(each) + 15 & ~15 if isinstance(each, kind) else 0 for each in first + last]
    return round(sum(sizes) / len(sizes) * len(objects)) if sizes else 0


class MemoryPostings(Postings):
    """Term → the one key that has it, or a set of keys: a set for each single key would cost 200 bytes.

    The keys of a term that has many are kept in order from the first `names_between` on. A key is filed first and then
    added to that order, which begins before it takes up the keys that are filed: so it lacks none.
    """

    def __init__(self) -> None:
        self.filed: dict[Term, bytes | set[bytes]] = {}
        self._orders: dict[Term, Ordered] = {}
        self._ordering = Lock()  # one reader puts the keys in order

    def add(self, term: Term, name: bytes) -> None:
        found = self.filed.get(term)
        if found is None:
            self.filed[term] = name
        elif isinstance(found, set):
            found.add(name)
        elif found != name:
            self.filed[term] = {found, name}
        if (order := self._orders.get(term)) is not None:
            order.add(name)

    def discard(self, term: Term, name: bytes) -> None:
        found = self.filed.get(term)
        if isinstance(found, set):
            found.discard(name)
            if not found:
                del self.filed[term]
        elif found == name:
            del self.filed[term]
        if (order := self._orders.get(term)) is not None:
            order.discard(name)
            if term not in self.filed:
                del self._orders[term]

    def extend(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        """File many keys; at the speed of C where no term is there yet, nor comes twice."""
        distinct = set(terms)
        if len(distinct) == len(terms) and self.filed.keys().isdisjoint(distinct):
            self.filed.update(zip(terms, names, strict=True))
            self.filed.pop(None, None)
            for term in list(self._orders):
                if term in distinct:
                    self._orders[term].add(names[terms.index(term)])
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

    def names_between(self, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return an iterator over the keys filed under a term, in order, as they are now."""
        order = self._in_order(term)
        if order is not None:
            return order.range(start, stop)
        return iter(sorted(name for name in self.names(term) if start <= name and (stop is None or name < stop)))

    def clear(self) -> None:
        """Let go of everything."""
        self.filed.clear()
        self._orders.clear()

    def _in_order(self, term: Term) -> Ordered | None:
        """Return the keys of a term that has many, kept in order from now on."""
        with self._ordering:
            order = self._orders.get(term)
            names = self.filed.get(term)
            if order is None and isinstance(names, set) and len(names) > _MANY:
                order = self._orders[term] = Ordered()
                order.build(self.names(term))
            return order

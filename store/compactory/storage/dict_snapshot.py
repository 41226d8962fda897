"""A directory's dicts, and snapshots of them that cost nothing until an entry changes.

A `FormerValues` has the values that were overwritten since a snapshot was taken, and refers to the next one. Each
snapshot refers to the one that began with it, and so to all later ones. The writer keeps each former value once for any
number of snapshots, and none without a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from heapq import merge
from threading import Lock
from typing import Any
from weakref import ref

from compactory.codec.decoding import Term
from compactory.codec.packed_record import count_by_partition
from compactory.errors import StoreClosed
from compactory.storage.backend import LookupMapping, Reading, ReadSnapshot
from compactory.storage.ordered_keys import OrderedKeys

__all__ = ["Live", "MemoryReadSnapshot", "WrittenDict"]


class Live(Reading):
    """A directory in memory, which goes on changing."""

    closed: bool


class FormerValues:
    """Former values of lookup keys that changed, None for those that were absent. Written by the writing thread."""

    __slots__ = ("__weakref__", "by_key", "following")

    def __init__(self) -> None:
        self.by_key: dict[bytes, bytes | None] = {}
        self.following: FormerValues | None = None


class WrittenDict(MutableMapping[bytes, bytes]):
    """Writes to a dict. Keeps the former values that snapshots need and, once it was built, the order of the keys.

    ``packed_records`` is the dict. It is no subclass: the garbage collector passes over a plain dict of bytes.
    """

    def __init__(self) -> None:
        self.packed_records: dict[bytes, bytes] = {}
        self._order: OrderedKeys | None = None
        self._ordering = Lock()  # guards that the order does not begin within `update`
        self._former_values: ref[FormerValues] | None = None  # the newest, as long as a snapshot holds it
        self.get = self.packed_records.get  # type: ignore[method-assign]  # at the speed of the dict
        self.keys = self.packed_records.keys  # type: ignore[method-assign]

    def __getitem__(self, key: bytes) -> bytes:
        return self.packed_records[key]

    def __setitem__(self, key: bytes, packed: bytes) -> None:
        if self._former_values is not None:
            self._keep_former((key,))
        order = self._order
        if order is not None and key not in self.packed_records:
            order.add(key)  # before the entry: an iteration over keys checks that each has one
        self.packed_records[key] = packed
        if self._order is not None and self._order is not order:  # it began meanwhile, and may lack the key
            self._order.add(key)

    def __delitem__(self, key: bytes) -> None:
        if self._former_values is not None:
            self._keep_former((key,))
        del self.packed_records[key]
        if self._order is not None:
            self._order.discard(key)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.packed_records)

    def __len__(self) -> int:
        return len(self.packed_records)

    def update(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:  # type: ignore[override]  # all that is needed
        if self._former_values is not None:
            pairs = list(pairs)
            self._keep_former([key for key, _ in pairs])
        with self._ordering:
            if self._order is None:
                self.packed_records.update(pairs)
                return
        for key, packed in pairs:
            self[key] = packed

    def clear(self) -> None:
        self.packed_records.clear()

    def begin_snapshot(self) -> FormerValues:
        """Return the former values that a snapshot of now needs, none yet. Called while nothing is written."""
        last = None if self._former_values is None else self._former_values()
        if last is not None and not last.by_key:
            return last
        former_values = FormerValues()
        if last is not None:
            last.following = former_values
        self._former_values = ref(former_values)
        return former_values

    def _keep_former(self, keys: Iterable[bytes]) -> None:
        """Keep the present values of these keys for living snapshots, before they change."""
        former_values = None if self._former_values is None else self._former_values()
        if former_values is None:
            self._former_values = None
            return
        former, get = former_values.by_key, self.packed_records.get
        for key in keys:
            if key not in former:
                former[key] = get(key)

    def in_order(self) -> OrderedKeys:
        """Return the keys in order, kept in order from now on. Called by a reader, while the writer goes on."""
        order = OrderedKeys()
        with self._ordering:
            self._order = order
        order.build(list(self.packed_records))
        return order


class DictSnapshot(LookupMapping):
    """A snapshot of a dict. For any thread.

    A reader gets the value from the dict first and from the former values next. Without a former value, the value
    of the dict is right. Raises StoreClosed if the close of the store removed the entries.
    """

    def __init__(self, live: Live, part: WrittenDict) -> None:
        self._live = live
        self._values = part.packed_records
        self._get = part.packed_records.get
        self._former_values: FormerValues | None = part.begin_snapshot()
        self._size = len(part.packed_records)

    def release(self) -> None:
        """Release the former values. The snapshot must not be read any more."""
        self._former_values = None

    def get(self, key: bytes, default: Any = None) -> Any:
        packed = self._get(key)
        former_values = self._former_values
        while former_values is not None:
            if key in former_values.by_key:
                packed = former_values.by_key[key]
                break
            former_values = former_values.following
        if packed is not None:
            return packed
        if self._live.closed:
            raise StoreClosed("the store was closed, or its topic was read anew")
        return default

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys_then(self._values))

    def range_then(self, present: Iterator[bytes], start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return the snapshot's keys from ``start`` to before ``stop`` in order, from the ``present`` ones in order."""
        former = self.former_values()
        if not former:
            return present
        changed = [key for key, packed in former.items() if packed is not None and start <= key]
        return merge(
            (key for key in present if key not in former),
            sorted(key for key in changed if stop is None or key < stop),
        )

    def former_values(self) -> dict[bytes, bytes | None]:
        """Return what the keys that changed since the snapshot had then; None for absent ones."""
        changed: dict[bytes, bytes | None] = {}
        former_values = self._former_values
        while former_values is not None:
            changed = former_values.by_key.copy() | changed
            former_values = former_values.following
        return changed

    def keys_then(self, present_keys: Iterable[bytes]) -> Iterable[bytes]:
        """Return the present keys without those added since the snapshot, and with those changed or deleted since."""
        present = list(present_keys)
        former = self.former_values()
        if not former:
            return present
        return {key for key in present if key not in former} | {
            key for key, packed in former.items() if packed is not None
        }


class MemoryReadSnapshot(ReadSnapshot):
    """A snapshot of a directory's dict. Its indexes are the live ones, corrected by former values. For any thread."""

    def __init__(self, live: Live, part: WrittenDict, term_of: Callable[[str, bytes], Term | None]) -> None:
        self._snapshot = DictSnapshot(live, part)
        self.entries: Mapping[bytes, bytes] = self._snapshot
        self._live = live
        self._term_of = term_of

    def close(self) -> None:
        self._snapshot.release()

    def all_keys(self) -> Iterator[bytes]:
        return iter(self.entries)

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return self._snapshot.range_then(self._live.range(start, stop), start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        keys = self.all_keys() if start is None else self.range(start, stop)
        return ((key, self.entries[key]) for key in keys)

    def sizes(self) -> dict[int, int]:
        return count_by_partition(packed for _, packed in self.pairs())

    def keys_of_term(self, index: str, term: Term) -> list[bytes]:
        """Return the keys that had a term, and others that changed since: readers compare values."""
        return list(self._snapshot.keys_then(self._live.keys_of_term(index, term)))

    def keys_of_term_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return an iterator over the keys of `keys_of_term` from ``start`` to before ``stop``, in order."""
        return self._snapshot.range_then(self._live.keys_of_term_between(index, term, start, stop), start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        present, former = list(self._live.terms(index)), self._snapshot.former_values()
        if not former:
            return iter(present)
        changed = {self._term_of(index, packed) for packed in former.values() if packed is not None} - {None}
        for term in present:
            if term not in changed and any(self._has(index, term, key) for key in self._live.keys_of_term(index, term)):
                changed.add(term)
        return iter(changed)

    def _has(self, index: str, term: Term, key: bytes) -> bool:
        packed = self.entries.get(key)
        return packed is not None and self._term_of(index, packed) == term

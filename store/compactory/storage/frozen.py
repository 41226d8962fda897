"""A directory's dicts, and how they were at one moment: at no cost before something changes.

Changes after a moment are kept by *epoch*: a dict of former values, and the epoch that follows. A snapshot holds
the epoch that began with it, and through it all later ones. So the writer keeps each former value once, however many
snapshots live, and nothing where none does.
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
from compactory.storage.backend import Frozen, Reading
from compactory.storage.by_get import ByGet
from compactory.storage.ordered_keys import Ordered

__all__ = ["FrozenReading", "Live", "WrittenDict"]


class Live(Reading):
    """The directory that goes on changing."""

    closed: bool


class Epoch:
    """Former values of lookup keys that changed, None for those that were absent. Written by the writing thread."""

    __slots__ = ("__weakref__", "following", "former")

    def __init__(self) -> None:
        self.former: dict[bytes, bytes | None] = {}
        self.following: Epoch | None = None


class WrittenDict(MutableMapping[bytes, bytes]):
    """Writes to a dict. Keeps the former values that snapshots need and, once it was built, the order of the keys.

    ``found`` is the dict. It is no subclass: the garbage collector passes over a plain dict of bytes.
    """

    def __init__(self) -> None:
        self.found: dict[bytes, bytes] = {}
        self._order: Ordered | None = None
        self._ordering = Lock()  # guards that the order does not begin within `update`
        self._epoch: ref[Epoch] | None = None  # the newest, as long as a snapshot holds it
        self.get = self.found.get  # type: ignore[method-assign]  # at the speed of the dict
        self.keys = self.found.keys  # type: ignore[method-assign]

    def __getitem__(self, key: bytes) -> bytes:
        return self.found[key]

    def __setitem__(self, key: bytes, packed: bytes) -> None:
        if self._epoch is not None:
            self._keep((key,))
        order = self._order
        if order is not None and key not in self.found:
            order.add(key)  # before the entry: an iteration over keys checks that each has one
        self.found[key] = packed
        if self._order is not None and self._order is not order:  # it began meanwhile, and may lack the key
            self._order.add(key)

    def __delitem__(self, key: bytes) -> None:
        if self._epoch is not None:
            self._keep((key,))
        del self.found[key]
        if self._order is not None:
            self._order.discard(key)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def update(self, packed_records: Iterable[tuple[bytes, bytes]]) -> None:  # type: ignore[override]  # all that is needed
        """Put many entries."""
        if self._epoch is not None:
            packed_records = list(packed_records)
            self._keep([key for key, _ in packed_records])
        with self._ordering:
            if self._order is None:
                self.found.update(packed_records)
                return
        for key, packed in packed_records:
            self[key] = packed

    def clear(self) -> None:
        """Let go of everything."""
        self.found.clear()

    def epoch(self) -> Epoch:
        """Return the epoch that begins now; called while nothing is written."""
        last = None if self._epoch is None else self._epoch()
        if last is not None and not last.former:
            return last
        epoch = Epoch()
        if last is not None:
            last.following = epoch
        self._epoch = ref(epoch)
        return epoch

    def _keep(self, keys: Iterable[bytes]) -> None:
        """Keep what these keys have, before it changes, for the snapshots that live."""
        epoch = None if self._epoch is None else self._epoch()
        if epoch is None:
            self._epoch = None
            return
        former, get = epoch.former, self.found.get
        for key in keys:
            if key not in former:
                former[key] = get(key)

    def in_order(self) -> Ordered:
        """Return the keys in order, kept in order from now on. Called by a reader, while the writer goes on."""
        order = Ordered()
        with self._ordering:
            self._order = order
        order.build(list(self.found))
        return order


class FrozenDict(ByGet):
    """A dict at one moment. For any thread.

    A reader takes the value from the dict first, and looks for a kept one second. If none is kept, the first is right.
    Raises StoreClosed if the store's close has removed the entries.
    """

    def __init__(self, live: Live, part: WrittenDict) -> None:
        self._live = live
        self._found = part.found
        self._get = part.found.get
        self._epoch: Epoch | None = part.epoch()
        self._size = len(part.found)

    def release(self) -> None:
        """Have the writer keep nothing more for it. It must not be read any more."""
        self._epoch = None

    def get(self, name: bytes, default: Any = None) -> Any:
        packed = self._get(name)
        epoch = self._epoch
        while epoch is not None:
            if name in epoch.former:
                packed = epoch.former[name]
                break
            epoch = epoch.following
        if packed is not None:
            return packed
        if self._live.closed:
            raise StoreClosed("the store was closed, or its topic was read anew")
        return default

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.names(self._found))

    def names_between(self, now: Iterator[bytes], start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return `names` of a reading of now that is in order, from ``start`` to before ``stop``, in order."""
        former = self.former()
        if not former:
            return now
        changed = [name for name, had in former.items() if had is not None and start <= name]
        return merge(
            (name for name in now if name not in former),
            sorted(name for name in changed if stop is None or name < stop),
        )

    def former(self) -> dict[bytes, bytes | None]:
        """Return what all that changed since this moment had then."""
        found: dict[bytes, bytes | None] = {}
        epoch = self._epoch
        while epoch is not None:
            found = epoch.former.copy() | found
            epoch = epoch.following
        return found

    def names(self, names: Iterable[bytes]) -> Iterable[bytes]:
        """Return the names of a reading of now without those that came, and with all that changed or went."""
        now = list(names)
        former = self.former()
        if not former:
            return now
        return {name for name in now if name not in former} | {name for name, had in former.items() if had is not None}


class FrozenReading(Frozen):
    """A directory's dict at one moment, and its indexes as far as they are the same then and now. For any thread."""

    def __init__(self, live: Live, part: WrittenDict, term_of: Callable[[str, bytes], Term | None]) -> None:
        self._as_it_was = FrozenDict(live, part)
        self.entries: Mapping[bytes, bytes] = self._as_it_was
        self._live = live
        self._term_of = term_of

    def close(self) -> None:
        """Have the writer keep nothing more for it."""
        self._as_it_was.release()

    def all_keys(self) -> Iterator[bytes]:
        return iter(self.entries)

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return self._as_it_was.names_between(self._live.range(start, stop), start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        names = self.all_keys() if start is None else self.range(start, stop)
        return ((name, self.entries[name]) for name in names)

    def sizes(self) -> dict[int, int]:
        return count_by_partition(packed for _, packed in self.pairs())

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the keys that were filed under a term, and others that have changed since: readers compare values."""
        return list(self._as_it_was.names(self._live.names(index, term)))

    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return an iterator over `names` between the two, in order."""
        return self._as_it_was.names_between(self._live.names_between(index, term, start, stop), start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        now, former = list(self._live.terms(index)), self._as_it_was.former()
        if not former:
            return iter(now)
        changed = {self._term_of(index, had) for had in former.values() if had is not None} - {None}
        for term in now:
            if term not in changed and any(self._has(index, term, name) for name in self._live.names(index, term)):
                changed.add(term)
        return iter(changed)

    def _has(self, index: str, term: Term, name: bytes) -> bool:
        packed = self.entries.get(name)
        return packed is not None and self._term_of(index, packed) == term

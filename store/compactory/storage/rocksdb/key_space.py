"""The mappings and indexes of a topic storage as the writing thread sees and changes them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, KeysView, MutableMapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any, cast

from compactory.codec.decoding import Term
from compactory.codec.packed_record import count_by_partition
from compactory.storage.backend import Postings
from compactory.storage.by_get import ByGet
from compactory.storage.rocksdb.database import RocksDatabase
from compactory.storage.rocksdb.keys import after, term_prefix

__all__ = ["KeySpace", "Names", "RocksPostings", "Seen", "Source"]

_ABSENT = object()
_EXACT = 1_000_000  # names that are kept as they are, 100 bytes each; from then on there is only the filter
_SLOTS = 1 << 25  # bytes; at 10 million names one in seven new ones is taken for known, and looked up in vain


class Source:
    """Where key spaces read: the database, and during a bulk load the filter that spares reading it."""

    def __init__(self, database: RocksDatabase, seen: Seen | None) -> None:
        self.database = database
        self.seen = seen

    def fetch(self, prefix: bytes, names: Collection[bytes], *, written: bool = False) -> dict[bytes, bytes]:
        """Return what the database holds of many names of a part; ``written``: they are about to be written."""
        asked = names
        if self.seen is not None:
            asked = self.seen.add(prefix, names) if written else self.seen.known(prefix, names)
        if not asked:
            return {}
        values = self.database.get_many(list(map(prefix.__add__, asked)))
        return {name: value for name, value in zip(asked, values, strict=True) if value is not None}


class KeySpace(ByGet, MutableMapping[bytes, bytes]):
    """One mapping of one directory. Belongs to the writing thread, except for ``sizes``.

    ``sizes``  how many names it holds: by the partition of their packed records, or all under 0; as of the last write.
               Replaced, never changed, so that any thread may read it

    Changes go three steps: *fresh* since the last commit, *pending* in the batch, then in the database. All are seen
    here at once. ``_known`` is what the database held when it was asked since the batch was begun.
    """

    def __init__(self, source: Source, prefix: bytes, sizes: dict[int, int], *, by_partition: bool) -> None:
        self.prefix = prefix
        self.sizes = sizes
        self._by_partition = by_partition
        self._source = source
        self._fresh: dict[bytes, bytes | None] = {}
        self._pending: dict[bytes, bytes | None] = {}
        self._known: dict[bytes, bytes | None] = {}

    def get(self, name: bytes, default: Any = None) -> Any:
        """Return what is there now."""
        for changes in (self._fresh, self._pending, self._known):
            found = changes.get(name, _ABSENT)
            if found is not _ABSENT:
                return default if found is None else found
        if not self.sizes:
            return default
        source = self._source
        if source.seen is None or source.seen.known(self.prefix, (name,)):
            found = source.database.read(self.prefix + name)
        else:
            found = None
        self._known[name] = found
        return default if found is None else found

    def __setitem__(self, name: bytes, value: bytes) -> None:
        self._fresh[name] = value

    def __delitem__(self, name: bytes) -> None:
        if self.get(name) is None:
            raise KeyError(name)
        self._fresh[name] = None

    def pop(self, name: bytes, default: Any = _ABSENT) -> Any:
        """Take a name out; return what was there."""
        found = self.get(name)
        if found is None:
            if default is _ABSENT:
                raise KeyError(name)
            return default
        self._fresh[name] = None
        return found

    def update(self, pairs: Any = (), /) -> None:
        """Set many names, at the speed of C."""
        self._fresh.update(pairs)

    def clear(self) -> None:
        """Take every name out."""
        self._fresh.update(dict.fromkeys(list(self)))

    def size(self) -> int:
        """Return how many names it held when it was written last. For any thread."""
        return sum(self.sizes.values())

    def keys(self) -> Names:
        """Return the names."""
        return Names(self)

    def __bool__(self) -> bool:
        return bool(self.sizes or self._fresh or self._pending) and len(self) > 0

    def __len__(self) -> int:
        """Count: exact, and at the price of a read for each name that was changed and not asked for since."""
        changed = self._changes()
        self._look_up([name for name in changed if name not in self._known])
        known = self._known.get
        delta = sum((value is not None) - (known(name) is not None) for name, value in changed.items())
        return self.size() + delta

    def __iter__(self) -> Iterator[bytes]:
        """Yield the names of the moment when the first is asked for, in no order."""
        changed = self._changes()
        width = len(self.prefix)
        snapshot = self._source.database.snapshot()
        for key in snapshot.keys(self.prefix, after(self.prefix)):
            if key[width:] not in changed:
                yield key[width:]
        yield from [name for name, value in changed.items() if value is not None]

    def lacks_all(self, names: list[bytes]) -> bool:
        """Say whether none of the names is there, with one question to the database for all of them."""
        known = self._known
        self._look_up([name for name in names if name not in known])
        fresh, pending = self._fresh, self._pending
        if fresh.keys().isdisjoint(names) and pending.keys().isdisjoint(names):
            return not any(map(known.get, names))  # no value is empty
        return all(self.get(name) is None for name in names)

    def _look_up(self, names: Collection[bytes]) -> None:
        """Ask the database for many names at once."""
        if self.sizes and names:
            found = self._source.fetch(self.prefix, names)
            self._known.update(dict.fromkeys(names))
            self._known.update(found)

    def stage(self, batch: Any) -> bool:
        """Put what is fresh into a batch; say whether there was anything."""
        fresh = self._fresh
        if not fresh:
            return False
        if None in fresh.values():
            for name, value in fresh.items():
                if value is None:
                    batch.delete(self.prefix + name)
                else:
                    batch.put(self.prefix + name, value)
        else:
            deque(map(batch.put, map(self.prefix.__add__, fresh), fresh.values()), maxlen=0)
        if self._pending:
            self._pending.update(fresh)
        else:
            self._pending = fresh
        self._fresh = {}
        return True

    def settle(self) -> None:
        """Count what the batch, which is about to be written, changes; forget it."""
        pending, self._pending = self._pending, {}
        if pending:
            sizes = Counter(self.sizes)
            sizes.update(self._counted(pending.values()))
            sizes.subtract(self._counted(self._replaced(pending)))
            self.sizes = {partition: number for partition, number in sizes.items() if number}
        self._known.clear()

    def _changes(self) -> dict[bytes, bytes | None]:
        return self._pending | self._fresh if self._pending else self._fresh

    def _replaced(self, changed: Collection[bytes]) -> list[bytes | None]:
        """Return what the database holds of names that are about to be written."""
        known = self._known
        unknown = [name for name in changed if name not in known] if known and self._source.seen is None else changed
        found = self._source.fetch(self.prefix, unknown, written=True) if self.sizes or self._source.seen else {}
        if unknown is changed:
            return list(found.values())
        return [*found.values(), *map(known.get, changed)]

    def _counted(self, values: Collection[bytes | None]) -> dict[int, int]:
        there = [value for value in values if value is not None] if None in values else cast("list[bytes]", values)
        return count_by_partition(there) if self._by_partition else {0: len(there)}


class Names(KeysView[bytes]):
    """The names of a part, as a set that asks the database for many at once."""

    _mapping: KeySpace

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        """Say whether none of the others is a name here."""
        return self._mapping.lacks_all([name for name in other if name is not None])


class RocksPostings(Postings):
    """The writing side of an index: changes are written blindly, as filing twice is once."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._fresh: dict[bytes, bool] = {}

    def add(self, term: Term, name: bytes) -> None:
        self._fresh[self.prefix + term_prefix(term) + name] = True

    def discard(self, term: Term, name: bytes) -> None:
        self._fresh[self.prefix + term_prefix(term) + name] = False

    def extend(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        prefixes = {term: self.prefix + term_prefix(term) for term in set(terms) if term is not None}
        self._fresh.update(
            (prefixes[term] + name, True) for term, name in zip(terms, names, strict=True) if term is not None
        )

    def stage(self, batch: Any) -> bool:
        """Put what is fresh into a batch; say whether there was anything."""
        fresh, self._fresh = self._fresh, {}
        for key, filed in fresh.items():
            if filed:
                batch.put(key, b"")
            else:
                batch.delete(key)
        return bool(fresh)


class Seen:
    """The names that a load may have met before. A name that is not among them needs no read.

    May report a name that was never added (after a million names); never misses one that was.

    Sets cost 0.1 µs a name; a filter of a byte a slot and one hash, which Python reads and writes in whole columns,
    0.3 µs and no more than 32 MB. A proper Bloom filter would take a µs. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, set[bytes]] | None = {}
        self._slots = bytearray()

    def known(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Return those names of a part that may have been added."""
        if self._names is None:
            return self._among(names, self._places(part, names)) if names else []
        held = self._names.get(part)
        return [] if not held or held.isdisjoint(names) else [name for name in names if name in held]

    def add(self, part: bytes, names: Collection[bytes]) -> list[bytes]:
        """Remember names of a part; return those that may have been added before."""
        if not names:
            return []
        if self._names is None:
            places = self._places(part, names)
            before = self._among(names, places)
            self._fill(places)
            return before
        before = self.known(part, names)
        self._names.setdefault(part, set()).update(names)
        if sum(map(len, self._names.values())) > _EXACT:
            self._give_up_names(self._names)
        return before

    def _give_up_names(self, names: dict[bytes, set[bytes]]) -> None:
        self._names, self._slots = None, bytearray(_SLOTS)
        for part in list(names):
            self._fill(self._places(part, names.pop(part)))

    def _fill(self, places: list[int]) -> None:
        slots = self._slots
        for place in places:
            slots[place] = 1

    def _among(self, names: Collection[bytes], places: list[int]) -> list[bytes]:
        found = itemgetter(*places)(self._slots) if len(places) > 1 else (self._slots[places[0]],)
        return list(compress(names, found)) if 1 in found else []

    def _places(self, part: bytes, names: Collection[bytes]) -> list[int]:
        salt, mask = hash(part), _SLOTS - 1
        return [(hash(name) ^ salt) & mask for name in names]

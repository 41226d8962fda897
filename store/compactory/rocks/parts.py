"""The mappings and indexes of a volume as the writing thread sees and changes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, KeysView, MutableMapping, Sequence
from typing import Any, cast

from compactory.cell import count_partitions
from compactory.decoding import Term
from compactory.rocks.database import Database
from compactory.rocks.keys import after, term_prefix
from compactory.rocks.seen import Seen

__all__ = ["Names", "Part", "RocksPostings", "Source"]

_ABSENT = object()


class Source:
    """Where parts read what was written: the database, and while a volume is loaded in bulk what spares reading it."""

    def __init__(self, database: Database, seen: Seen | None) -> None:
        self.database = database
        self.seen = seen

    def fetch(self, prefix: bytes, names: Collection[bytes]) -> dict[bytes, bytes | None]:
        """Return what the database holds under many names of a part."""
        asked = list(names) if self.seen is None else self.seen.known(prefix, names)
        found: dict[bytes, bytes | None] = dict.fromkeys(names)
        if asked:
            found.update(zip(asked, self.database.get_many(list(map(prefix.__add__, asked))), strict=True))
        return found


class Part(MutableMapping[bytes, bytes]):
    """One mapping of one directory. Belongs to the writing thread, except for ``sizes``.

    ``sizes``  how many names it holds: by the partition of their cells, or all under 0; as of what was written last.
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
        found = self._known[name] = (
            source.database.read(self.prefix + name)
            if source.seen is None
            else source.fetch(self.prefix, (name,))[name]
        )
        return default if found is None else found

    def __getitem__(self, name: bytes) -> bytes:
        found: bytes | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return self.get(cast("bytes", name)) is not None

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

    def keys(self) -> Names:
        """Return the names."""
        return Names(self)

    def __bool__(self) -> bool:
        return bool(self.sizes or self._fresh or self._pending) and len(self) > 0

    def __len__(self) -> int:
        """Count: exact, and at the price of a read for each name that was changed and not asked for since."""
        before = self._olds(changed := self._changes())
        delta = sum((changed[name] is not None) - (old is not None) for name, old in before.items())
        return sum(self.sizes.values()) + delta

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
        self._look_up(names)
        fresh, pending, known = self._fresh, self._pending, self._known
        if fresh.keys().isdisjoint(names) and pending.keys().isdisjoint(names):
            return not any(map(known.get, names))  # no value is empty
        return all(self.get(name) is None for name in names)

    def _look_up(self, names: Collection[bytes]) -> None:
        """Ask the database for those names of which nothing is known, all at once."""
        if self.sizes:
            fresh, pending, known = self._fresh, self._pending, self._known
            unknown = [name for name in names if name not in known and name not in pending and name not in fresh]
            if unknown:
                self._known.update(self._source.fetch(self.prefix, unknown))

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
            olds = self._olds(pending)
            sizes = dict(self.sizes)
            for partition, number in self._counted(pending.values()).items():
                sizes[partition] = sizes.get(partition, 0) + number
            for partition, number in self._counted(olds.values()).items():
                sizes[partition] = sizes.get(partition, 0) - number
            self.sizes = {partition: number for partition, number in sizes.items() if number}
            if self._source.seen is not None:
                self._source.seen.add(self.prefix, pending)
        self._known.clear()

    def _changes(self) -> dict[bytes, bytes | None]:
        return self._pending | self._fresh if self._pending else self._fresh

    def _olds(self, changed: Collection[bytes]) -> dict[bytes, bytes | None]:
        """Return what the database holds under the names; it is asked for those of which that is unknown."""
        if not self.sizes:
            return dict.fromkeys(changed)
        known = self._known
        if not known:
            return self._source.fetch(self.prefix, changed)
        unknown = [name for name in changed if name not in known]
        if unknown:
            known.update(self._source.fetch(self.prefix, unknown))
        return {name: known[name] for name in changed}

    def _counted(self, values: Collection[bytes | None]) -> dict[int, int]:
        there = [value for value in values if value is not None]
        if self._by_partition:
            return count_partitions(there)
        return {0: len(there)} if there else {}


class Names(KeysView[bytes]):
    """The names of a part, as a set that asks the database for many at once."""

    _mapping: Part

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        """Say whether none of the others is a name here."""
        return self._mapping.lacks_all([name for name in other if name is not None])


class RocksPostings:
    """The writing side of an index: changes are written blindly, as filing twice is once."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._fresh: dict[bytes, bool] = {}

    def add(self, term: Term, name: bytes) -> None:
        """File a key under a term."""
        self._fresh[self.prefix + term_prefix(term) + name] = True

    def discard(self, term: Term, name: bytes) -> None:
        """Take a key out from under a term."""
        self._fresh[self.prefix + term_prefix(term) + name] = False

    def extend(self, terms: Sequence[Term | None], names: Sequence[bytes]) -> None:
        """File many keys."""
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

"""The mappings and indexes of a topic storage as the writing thread sees and changes them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, KeysView, MutableMapping, Sequence
from typing import Any, cast

from compactory.codec.decoding import Term
from compactory.codec.packed_record import count_by_partition
from compactory.storage.backend import LookupMapping, Postings
from compactory.storage.rocksdb.database import RocksDatabase
from compactory.storage.rocksdb.keys import after, term_prefix

__all__ = ["KeySpace", "RocksPostings"]

_ABSENT = object()


class KeySpace(LookupMapping, MutableMapping[bytes, bytes]):
    """A mapping of a directory. Belongs to the writing thread, except for ``sizes``.

    ``sizes``  how many keys it holds: by the partition of their packed records, or all under 0; as of the last write.
               Replaced, never changed, so that any thread may read it

    A change takes three steps: *fresh* since the last commit, *pending* in the batch, then in the database. The mapping
    shows it at once. ``_existing`` is what the database had when it was asked since the batch was begun.
    """

    def __init__(self, database: RocksDatabase, prefix: bytes, sizes: dict[int, int], *, by_partition: bool) -> None:
        self.prefix = prefix
        self.sizes = sizes
        self._by_partition = by_partition
        self._database = database
        self._fresh: dict[bytes, bytes | None] = {}
        self._pending: dict[bytes, bytes | None] = {}
        self._existing: dict[bytes, bytes | None] = {}

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the newest value, committed or not."""
        for changes in (self._fresh, self._pending, self._existing):
            value = changes.get(key, _ABSENT)
            if value is not _ABSENT:
                return default if value is None else value
        if not self.sizes:
            return default
        key_filter = self._database.key_filter
        may_exist = key_filter is None or key_filter.possible(self.prefix, (key,))
        value = self._existing[key] = self._database.read(self.prefix + key) if may_exist else None
        return default if value is None else value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._fresh[key] = value

    def __delitem__(self, key: bytes) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self._fresh[key] = None

    def pop(self, key: bytes, default: Any = _ABSENT) -> Any:
        value = self.get(key)
        if value is None:
            if default is _ABSENT:
                raise KeyError(key)
            return default
        self._fresh[key] = None
        return value

    def update(self, pairs: Any = (), /) -> None:
        self._fresh.update(pairs)

    def clear(self) -> None:
        self._fresh.update(dict.fromkeys(list(self)))

    def size(self) -> int:
        """Return how many keys it held when it was written last. For any thread."""
        return sum(self.sizes.values())

    def keys(self) -> KeySet:
        return KeySet(self)

    def __bool__(self) -> bool:
        return bool(self.sizes or self._fresh or self._pending) and len(self) > 0

    def __len__(self) -> int:
        """Return the exact number of keys. Reads each changed key that was not looked up since."""
        changed = self._changes()
        self._look_up([key for key in changed if key not in self._existing])
        existing = self._existing.get
        delta = sum((value is not None) - (existing(key) is not None) for key, value in changed.items())
        return self.size() + delta

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys, in any order, as they are when the iteration begins."""
        changed = self._changes()
        width = len(self.prefix)
        snapshot = self._database.snapshot()
        for key in snapshot.keys(self.prefix, after(self.prefix)):
            if key[width:] not in changed:
                yield key[width:]
        yield from [key for key, value in changed.items() if value is not None]

    def lacks_all(self, keys: list[bytes]) -> bool:
        """Return True if none of the keys is there, with one call of the database for all."""
        existing = self._existing
        self._look_up([key for key in keys if key not in existing])
        if self._fresh.keys().isdisjoint(keys) and self._pending.keys().isdisjoint(keys):
            return not any(map(existing.get, keys))  # no value is empty
        return all(self.get(key) is None for key in keys)

    def _look_up(self, keys: Collection[bytes]) -> None:
        """Read the missing values of many keys with one call of the database."""
        if self.sizes and keys:
            key_filter = self._database.key_filter
            possible = keys if key_filter is None else key_filter.possible(self.prefix, keys)
            self._existing.update(dict.fromkeys(keys))
            self._existing.update(self._fetch(possible))

    def _fetch(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        values = self._database.get_many(list(map(self.prefix.__add__, keys))) if keys else []
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def stage(self, batch: Any) -> bool:
        """Put uncommitted changes into a batch; return True if there were any."""
        fresh, self._fresh = self._fresh, {}
        if None in fresh.values():
            for key, value in fresh.items():
                if value is None:
                    batch.delete(self.prefix + key)
                else:
                    batch.put(self.prefix + key, value)
        else:
            deque(map(batch.put, map(self.prefix.__add__, fresh), fresh.values()), maxlen=0)
        if self._pending:
            self._pending.update(fresh)
        else:
            self._pending = fresh
        return bool(fresh)

    def settle(self) -> None:
        """Add the changes of the batch, which is about to be written, to the sizes."""
        pending, self._pending = self._pending, {}
        if pending:
            sizes = Counter(self.sizes)
            sizes.update(self._counted(pending.values()))
            sizes.subtract(self._counted(self._replaced(pending)))
            self.sizes = {partition: number for partition, number in sizes.items() if number}
        self._existing.clear()

    def _changes(self) -> dict[bytes, bytes | None]:
        return self._pending | self._fresh if self._pending else self._fresh

    def _replaced(self, changed: Collection[bytes]) -> list[bytes | None]:
        """Return what the database holds of keys that are about to be written."""
        key_filter = self._database.key_filter
        if key_filter is not None:
            return list(self._fetch(key_filter.add(self.prefix, changed)).values())
        existing = self._existing
        unknown = [key for key in changed if key not in existing] if self.sizes else []
        return [*self._fetch(unknown).values(), *map(existing.get, changed)]

    def _counted(self, values: Collection[bytes | None]) -> dict[int, int]:
        present = [value for value in values if value is not None] if None in values else cast("list[bytes]", values)
        return count_by_partition(present) if self._by_partition else {0: len(present)}


class KeySet(KeysView[bytes]):
    """The keys of a part, as a set that asks the database for many at once."""

    _mapping: KeySpace

    def isdisjoint(self, keys: Iterable[Any]) -> bool:
        return self._mapping.lacks_all([key for key in keys if key is not None])


class RocksPostings(Postings):
    """The writing side of an index: changes are written blindly, as filing twice is once."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._fresh: dict[bytes, bool] = {}

    def add(self, term: Term, key: bytes) -> None:
        self._fresh[self.prefix + term_prefix(term) + key] = True

    def discard(self, term: Term, key: bytes) -> None:
        self._fresh[self.prefix + term_prefix(term) + key] = False

    def extend(self, terms: Sequence[Term | None], keys: Sequence[bytes]) -> None:
        prefixes = {term: self.prefix + term_prefix(term) for term in set(terms) if term is not None}
        self._fresh.update(
            (prefixes[term] + key, True) for term, key in zip(terms, keys, strict=True) if term is not None
        )

    def stage(self, batch: Any) -> bool:
        """Put uncommitted changes into a batch; return True if there were any."""
        fresh, self._fresh = self._fresh, {}
        for key, is_present in fresh.items():
            if is_present:
                batch.put(key, b"")
            else:
                batch.delete(key)
        return bool(fresh)

"""A directory's dicts as they were at one moment, at no cost before something changes.

What changes after a moment is kept by *epoch*: a dict of former values, and the epoch that follows. A snapshot holds
the epoch that began with it, and through it all later ones. So the writer keeps each former value once, however many
snapshots live, and nothing where none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from compactory.codec.decoding import Term
from compactory.codec.packed_record import count_partitions
from compactory.errors import StoreClosed

__all__ = ["Epoch", "Frozen"]


class Live(Protocol):
    """The dicts that go on changing: `MemoryDirectoryStorage`."""

    entries: Mapping[bytes, bytes]
    closed: bool

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys of now in order."""
        ...

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the lookup keys filed under a term now."""
        ...

    def terms(self, index: str) -> Iterator[Term]:
        """Yield the terms of now."""
        ...


class Epoch:
    """What lookup keys had before they changed, None for those that were absent. Written by the writing thread."""

    __slots__ = ("__weakref__", "following", "former")

    def __init__(self) -> None:
        self.former: dict[bytes, bytes | None] = {}
        self.following: Epoch | None = None

    def kept(self) -> dict[bytes, bytes | None]:
        """Return what all that changed since this epoch began had then."""
        found: dict[bytes, bytes | None] = {}
        epoch: Epoch | None = self
        while epoch is not None:
            found = epoch.former.copy() | found
            epoch = epoch.following
        return found


class Frozen(Mapping[bytes, bytes]):
    """The entries of one moment, and all that readers ask of a directory storage. For any thread.

    A reader takes the value from the dict first, and looks for a kept one second. If none is kept, the first is right.
    Raises StoreClosed if the store's close has removed the entries.
    """

    def __init__(self, live: Live, epoch: Epoch, term_of: Callable[[str, bytes], Term | None]) -> None:
        self._live = live
        self._term_of = term_of
        self._get = live.entries.get
        self._epoch = epoch
        self._size = len(live.entries)

    @property
    def entries(self) -> Frozen:
        """The entries themselves."""
        return self

    def reading(self) -> Frozen:
        """The same: it does not change."""
        return self

    def get(self, name: bytes, default: Any = None) -> Any:
        """Return the packed record, or ``default``."""
        packed = self._get(name)
        epoch: Epoch | None = self._epoch
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

    def __getitem__(self, name: bytes) -> bytes:
        packed: bytes | None = self.get(name)
        if packed is None:
            raise KeyError(name)
        return packed

    def __contains__(self, name: object) -> bool:
        return isinstance(name, bytes) and self.get(name) is not None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self.all_keys()

    def all_keys(self) -> Iterator[bytes]:
        """Yield the lookup keys."""
        return iter(self._as_it_was(list(self._live.entries)))

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the lookup keys between the two, in order."""
        found = self._as_it_was(self._live.range(start, stop))
        return iter(sorted(name for name in found if name >= start and (stop is None or name < stop)))

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield lookup keys and packed records."""
        return ((name, self[name]) for name in (self.all_keys() if start is None else self.range(start, stop)))

    def sizes(self) -> dict[int, int]:
        """Count the entries by partition."""
        return count_partitions(packed for _, packed in self.pairs())

    def names(self, index: str, term: Term) -> list[bytes]:
        """Return the keys that were filed under a term, and others that have changed since: readers compare values."""
        return list(self._as_it_was(self._live.names(index, term)))

    def names_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield `names` between the two, in order."""
        return iter(sorted(name for name in self.names(index, term) if name >= start and (stop is None or name < stop)))

    def terms(self, index: str) -> Iterator[Term]:
        """Yield every term under which something was filed."""
        now, former = list(self._live.terms(index)), self._epoch.kept()
        if not former:
            return iter(now)
        changed = {self._term_of(index, had) for had in former.values() if had is not None} - {None}
        for term in now:
            if term not in changed and any(self._has(index, term, name) for name in self._live.names(index, term)):
                changed.add(term)
        return iter(changed)

    def _has(self, index: str, term: Term, name: bytes) -> bool:
        packed = self.get(name)
        return packed is not None and self._term_of(index, packed) == term

    def _as_it_was(self, names: Iterable[bytes]) -> Iterable[bytes]:
        """Return the names of a reading of now without those that came, and with all that changed or went."""
        now = list(names)
        former = self._epoch.kept()
        if not former:
            return now
        return {name for name in now if name not in former} | {name for name, had in former.items() if had is not None}

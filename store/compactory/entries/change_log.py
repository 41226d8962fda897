"""The newest changes of one table's entries, in the order in which they were applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from threading import Condition
from typing import Final, NamedTuple

from compactory.codec.packed_record import METADATA_SIZE, unpack

__all__ = ["AppliedChange", "ChangeLog"]

_MOST: Final = 10_000  # changes that are kept
_MOST_BYTES: Final = 16 * 2**20  # of their old and new values
_SPARE: Final = 1.25  # how far beyond that it may grow, so that changes go by the thousand


class AppliedChange(NamedTuple):
    """What answered for a lookup key before a record was applied and afterwards, as packed records."""

    name: bytes
    old: bytes | None
    new: bytes | None
    metadata: bytes
    """The metadata of the record that was applied."""


class ChangeLog:
    """Changes are recorded from `open` on; the newest 10,000 are kept, at most 16 MiB (about a quarter more at times).

    ``positions``  partition → next offset; every change before it is here or was
    ``read_to``    partition → the offset after the last record that was read as it came: what lies between that and
                   the position makes no change, such as the end of a transaction
    ``floor``      partition → the offset from which on every change is here; 0 for partitions that are not named
    ``first``      the number of the oldest change that is kept; each change has the next number
    ``ended``      whether no more changes come: the store ended, or another table is served

    The reader's thread writes. Any thread reads, while it holds ``changed``, which is notified after each batch.
    """

    def __init__(self) -> None:
        self.recording = False
        self.ended = False
        self.positions: dict[int, int] = {}
        self.read_to: dict[int, int] = {}
        self.floor: dict[int, int] = {}
        self.first = 0
        self.changed = Condition()
        self._kept: list[AppliedChange] = []
        self._bytes = 0
        self._unpublished: list[AppliedChange] = []
        self._listeners: tuple[Callable[[], object], ...] = ()

    @property
    def end(self) -> int:
        """The number of the change that comes next."""
        return self.first + len(self._kept)

    def open(self) -> None:
        """Record from here on. Idempotent. Called by the reader's thread, between two batches."""
        with self.changed:
            if not self.recording:
                self.recording, self.floor = True, {**self.positions, **self.read_to}

    def add(self, name: bytes, old: bytes | None, new: bytes | None, metadata: bytes) -> None:
        """Record a change, if changes are recorded; readers see it once it is published."""
        if self.recording:
            self._unpublished.append(AppliedChange(name, old, new, metadata))

    def add_all(self, names: list[bytes], olds: Iterable[bytes | None], news: list[bytes]) -> None:
        """Record that these keys got these packed records; ``olds`` are of the time before the first of them."""
        if len(set(names)) < len(names):
            olds = _replayed(names, olds, news)
        self._unpublished += [
            AppliedChange(name, old, new, new[-METADATA_SIZE:])
            for name, old, new in zip(names, olds, news, strict=True)
        ]

    def publish(self, positions: Mapping[int, int]) -> None:
        """Show readers what was recorded, and the positions up to which that goes."""
        new, self._unpublished = self._unpublished, []
        with self.changed:
            self._kept += new
            self._bytes += _size(new)
            self._trim()
            self.positions.update(positions)
            self.changed.notify_all()
        if new:
            self._tell()

    def end_here(self) -> None:
        """Say that no more changes come. Idempotent, for any thread."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self._tell()

    def kept_from(self, number: int) -> list[AppliedChange]:
        """Return the changes that are kept from a number on, which is not below ``first``."""
        return self._kept[number - self.first :]

    def subscribe(self, listener: Callable[[], object]) -> None:
        """Have a quick callable called when there are more changes, and at their end."""
        with self.changed:
            self._listeners += (listener,)

    def unsubscribe(self, listener: Callable[[], object]) -> None:
        """Call it no more."""
        with self.changed:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _trim(self) -> None:
        if len(self._kept) <= _MOST * _SPARE and self._bytes <= _MOST_BYTES * _SPARE:
            return
        dropped = max(0, len(self._kept) - _MOST)
        left = self._bytes - _size(self._kept[:dropped])
        while left > _MOST_BYTES and dropped < len(self._kept):
            left -= _size(self._kept[dropped : dropped + 1])
            dropped += 1
        for change in self._kept[:dropped]:
            partition, offset, _ = unpack(change.metadata)
            self.floor[partition] = max(self.floor.get(partition, 0), offset + 1)
        del self._kept[:dropped]
        self._bytes = left
        self.first += dropped


def _size(changes: Iterable[AppliedChange]) -> int:
    return sum(map(len, filter(None, chain.from_iterable((change.old, change.new) for change in changes))))


def _replayed(names: list[bytes], olds: Iterable[bytes | None], news: list[bytes]) -> list[bytes | None]:
    """Return what each key had before each of its packed records, where a key comes several times."""
    last: dict[bytes, bytes] = {}
    found = []
    for name, old, new in zip(names, olds, news, strict=True):
        found.append(last.get(name, old))
        last[name] = new
    return found

"""The newest changes of one table's entries, in the order in which they were applied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Final

__all__ = ["AppliedChange", "ChangeLog", "size_of"]

_MOST: Final = 10_000  # changes that are kept
_MOST_BYTES: Final = 16 * 2**20  # of their old and new values
_SPARE: Final = 1.25  # how far beyond that it may grow, so that changes go by the thousand


AppliedChange = tuple[bytes, bytes | None, bytes | None, bytes]
"""A lookup key; its packed records before a record was applied and afterwards; bytes that end in the record's metadata.

A plain tuple, made of columns: the reader's thread makes a million a second. The last field may be the packed record
itself, so that the reader's thread cuts nothing off.
"""


def size_of(change: AppliedChange) -> int:
    """Return the bytes of both packed records."""
    return len(change[1] or b"") + len(change[2] or b"")


class ChangeLog:
    """Changes are recorded from `open` on; the newest 10,000 are kept, at most 16 MiB (about a quarter more at times).

    ``positions``  partition → next offset; every change before it is here or was
    ``read_to``    partition → the offset after the last record that was read as it came: what lies between that and
                   the position makes no change, such as the end of a transaction
    ``floor``      partition → the offset from which on every change is here; 0 for partitions that are not named
    ``late``       the numbers of changes that retried bad records made: cursors don't show whether they were seen
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
        self.late: set[int] = set()
        self.first = 0
        self.changed = Condition()
        self._kept: list[AppliedChange] = []
        self._bytes = 0
        self._published: deque[tuple[int, int, dict[int, int]]] = deque()  # their number, bytes, and positions by then
        self._unpublished: list[AppliedChange] = []
        self._unpublished_bytes = 0
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
            change = name, old, new, metadata
            self._unpublished.append(change)
            self._unpublished_bytes += size_of(change)

    def add_all(self, names: list[bytes], olds: Sequence[bytes | None], news: list[bytes]) -> None:
        """Record that these keys got these packed records; ``olds`` are of the time before the first of them."""
        if len(set(names)) < len(names):
            olds = _replayed(names, olds, news)
        self._unpublished += zip(names, olds, news, news, strict=True)
        self._unpublished_bytes += sum(map(len, filter(None, olds))) + sum(map(len, news))

    def publish(self, positions: Mapping[int, int]) -> None:
        """Show readers what was recorded, and the positions up to which that goes; none for retried records."""
        new, self._unpublished = self._unpublished, []
        size, self._unpublished_bytes = self._unpublished_bytes, 0
        with self.changed:
            self.positions.update(positions)
            if new:
                self.late.update(() if positions else range(self.end, self.end + len(new)))
                self._kept += new
                self._bytes += size
                self._published.append((len(new), size, dict(self.positions)))
                self._trim()
            self.changed.notify_all()
        if new:
            self._notify()

    def end_here(self) -> None:
        """Say that no more changes come. Idempotent, for any thread."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self._notify()

    def kept_from(self, number: int, end: int) -> list[AppliedChange]:
        """Return the changes from a number on, which is not below ``first``, to before ``end``."""
        return self._kept[number - self.first : max(0, end - self.first)]

    def subscribe(self, listener: Callable[[], object]) -> None:
        """Have a quick callable called when there are more changes, and at their end."""
        with self.changed:
            self._listeners += (listener,)

    def unsubscribe(self, listener: Callable[[], object]) -> None:
        """Call it no more."""
        with self.changed:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def _trim(self) -> None:
        if len(self._kept) <= _MOST * _SPARE and self._bytes <= _MOST_BYTES * _SPARE:
            return
        dropped = 0
        while len(self._kept) - dropped > _MOST or self._bytes > _MOST_BYTES:
            number, size, positions = self._published.popleft()
            self.floor |= {part: max(at, self.floor.get(part, 0)) for part, at in positions.items()}
            dropped += number
            self._bytes -= size
        del self._kept[:dropped]
        self.first += dropped
        self.late = {number for number in self.late if number >= self.first}


def _replayed(names: list[bytes], olds: Sequence[bytes | None], news: list[bytes]) -> list[bytes | None]:
    """Return what each key had before each of its packed records, where a key comes several times."""
    last: dict[bytes, bytes] = {}
    found = []
    for name, old, new in zip(names, olds, news, strict=True):
        found.append(last.get(name, old))
        last[name] = new
    return found

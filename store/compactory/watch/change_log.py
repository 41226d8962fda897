"""The newest changes of one table's entries, in the order in which records were applied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from threading import Condition
from typing import Final

__all__ = ["AppliedChange", "ChangeLog", "record_of", "size_of"]

_MAX_CHANGES: Final = 10_000
_MAX_BYTES: Final = 16 * 2**20  # of old and new values
_SLACK: Final = 1.25  # the log grows to this multiple of the limits, so that it is trimmed by thousands of changes


AppliedChange = tuple[bytes, bytes | None, bytes | None, bytes]
"""A lookup key, its old and its new packed record, and bytes that end in the origin of the record that was applied.

A plain tuple, as the reader thread zips a million a second out of columns. The last item may be the new packed record
itself, which saves a copy of its origin.
"""


record_of: Callable[[AppliedChange], bytes] = itemgetter(3)
"""Return the last item, which ends in the origin of the record."""


def size_of(change: AppliedChange) -> int:
    """Return the bytes of both packed records."""
    _, old, new, _ = change
    return len(old or b"") + len(new or b"")


class ChangeLog:
    """Records changes after `start_recording`. Keeps the newest 10,000, at most 16 MiB, or up to a quarter more.

    ``positions``      partition → next offset: changes of all records before it were published. Replaced, never changed
    ``read_to``        partition → offset after the last record that was applied. Nothing between it and the position
                       makes a change: the end of a transaction is no record
    ``complete_from``  partition → first offset from which all changes are kept; 0 for other partitions
    ``retried``        numbers of the changes that retried bad records made: a cursor can't say whether they were seen
    ``first_number``   number of the oldest change that is kept; each change has the next number
    ``is_ended``       no more changes come: the store ended, or serves another table

    The reader thread writes. Any thread reads while it holds ``condition``, which is notified after each batch.
    """

    def __init__(self) -> None:
        self.recording = False
        self.is_ended = False
        self.positions: Mapping[int, int] = {}
        self.read_to: dict[int, int] = {}
        self.complete_from: dict[int, int] = {}
        self.retried: set[int] = set()
        self.first_number = 0
        self.condition = Condition()
        self._changes: list[AppliedChange] = []
        self._bytes = 0
        self._batches: deque[tuple[int, int, Mapping[int, int]]] = deque()  # count, bytes and positions of each batch
        self._unpublished: list[AppliedChange] = []
        self._unpublished_bytes = 0
        self._listeners: tuple[Callable[[], object], ...] = ()

    @property
    def next_number(self) -> int:
        """The number that the next change gets."""
        return self.first_number + len(self._changes)

    def start_recording(self) -> None:
        """Record all later changes. Idempotent. For the reader thread, between two batches."""
        with self.condition:
            if not self.recording:
                self.recording = True
                self.complete_from = {**self.positions, **self.read_to}

    def add(self, key: bytes, old: bytes | None, new: bytes | None, record: bytes) -> None:
        """Record a change, if the log is recording. `publish` shows it to readers."""
        if self.recording:
            change = key, old, new, record
            self._unpublished.append(change)
            self._unpublished_bytes += size_of(change)

    def add_updates(self, keys: list[bytes], olds: Sequence[bytes | None], news: list[bytes]) -> None:
        """Record that these keys got new packed records. ``olds`` are from before the first of the updates."""
        if len(set(keys)) < len(keys):
            olds = _successive_olds(keys, olds, news)
        self._unpublished += zip(keys, olds, news, news, strict=True)
        self._unpublished_bytes += sum(map(len, filter(None, olds))) + sum(map(len, news))

    def publish(self, positions: Mapping[int, int]) -> None:
        """Show readers the recorded changes, and the positions after them; empty for changes by retried bad records."""
        changes, size = self._unpublished, self._unpublished_bytes
        with self.condition:
            self.positions = {**self.positions, **positions}
            if changes:
                if not positions:
                    self.retried.update(range(self.next_number, self.next_number + len(changes)))
                self._unpublished, self._unpublished_bytes = [], 0
                self._changes += changes
                self._bytes += size
                self._batches.append((len(changes), size, self.positions))
                self._trim()
            self.condition.notify_all()
        if changes:
            self._call_listeners()

    def end(self) -> None:
        """Tell readers that no more changes come. Idempotent, for any thread."""
        with self.condition:
            self.is_ended = True
            self.condition.notify_all()
        self._call_listeners()

    def changes_between(self, number: int, stop: int) -> list[AppliedChange]:
        """Return the changes from a number, at least ``first_number``, to before ``stop``."""
        return self._changes[number - self.first_number : max(0, stop - self.first_number)]

    def subscribe(self, listener: Callable[[], object]) -> None:
        """Call a quick callable after new changes are published, and at the end of the log."""
        with self.condition:
            self._listeners += (listener,)

    def unsubscribe(self, listener: Callable[[], object]) -> None:
        """Stop calling a listener."""
        with self.condition:
            self._listeners = tuple(subscribed for subscribed in self._listeners if subscribed != listener)

    def _call_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def _trim(self) -> None:
        if len(self._changes) <= _MAX_CHANGES * _SLACK and self._bytes <= _MAX_BYTES * _SLACK:
            return
        removed = 0
        while len(self._changes) - removed > _MAX_CHANGES or self._bytes > _MAX_BYTES:
            count, size, positions = self._batches.popleft()
            for partition, position in positions.items():
                self.complete_from[partition] = max(position, self.complete_from.get(partition, 0))
            removed += count
            self._bytes -= size
        del self._changes[:removed]
        self.first_number += removed
        self.retried = {number for number in self.retried if number >= self.first_number}


def _successive_olds(keys: list[bytes], olds: Sequence[bytes | None], news: list[bytes]) -> list[bytes | None]:
    """Return the old packed record before each update, where a key is updated several times."""
    newest: dict[bytes, bytes] = {}
    result = []
    for key, old, new in zip(keys, olds, news, strict=True):
        result.append(newest.get(key, old))
        newest[key] = new
    return result

"""A directory's dicts are filled out of a saved file while they are read already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from threading import RLock
from typing import Any

from compactory.errors import BackendCorrupt
from compactory.storage.by_get import ByGet
from compactory.storage.saved_file import Bucket, SavedDirectory

__all__ = ["Filling", "FillingEntries"]

_AT_ONCE = 8  # buckets between two pauses: 150 µs


class Filling:
    """Which buckets of a saved directory its table has taken over.

    ``lock`` guards that, and is held by the thread that applies records: a record of a key comes after its bucket.
    ``take`` is the table's, called under the lock; ``done`` is called once, after the last bucket. Any thread may fill.
    Raises BackendCorrupt for a file that makes no sense, whatever its digest says.
    """

    def __init__(self, saved: SavedDirectory, take: Callable[[Bucket], None], done: Callable[[], None]) -> None:
        self.lock = RLock()
        self.left = saved.count  # entries that were not taken over yet; bucket 0 is, at once
        self._saved = saved
        self._take = take
        self._done = done
        self._next = 0
        self._filled = bytearray(saved.buckets)
        self._ended = False

    def fill(self, keys: Iterable[bytes | None]) -> None:
        """Fill the buckets of topic keys."""
        for key in keys:
            for number in self._saved.buckets_of(key, named=False) if key else ():
                self._fill(number)

    def fill_shared(self) -> None:
        """Fill the bucket whose lookup keys are shared: which record answers is known only with all of them."""
        self._fill(0)

    def fill_name(self, name: bytes) -> None:
        """Fill the buckets that may have a lookup key."""
        for number in self._saved.buckets_of(name, named=True):
            self._fill(number)

    def fill_all(self) -> None:
        """Fill all that is left; other threads run in between."""
        while self._step():
            time.sleep(0)

    def end(self) -> None:
        """Fill no more: what was filled is being cleared."""
        with self.lock:
            self._ended = True

    def find(self, name: bytes) -> bytes | None:
        """Return the packed record of a lookup key that no filled bucket has. Waits for no lock."""
        for number in self._saved.buckets_of(name, named=True):
            if not self._filled[number]:
                bucket = self._saved.bucket(number)
                if name in bucket.names:
                    return bucket.packed_records[bucket.names.index(name)]
        return None

    def _step(self) -> bool:
        """Fill the next buckets; say whether there may be more."""
        with self.lock:
            if self._ended:
                return False
            if self._next < len(self._filled):
                self._next, begin = min(self._next + _AT_ONCE, len(self._filled)), self._next
                for number in range(begin, self._next):
                    self._fill(number)
                return True
            self._ended = True
            self._done()
            return False

    def _fill(self, number: int) -> None:
        if self._filled[number] or self._ended:
            return
        with self.lock:
            if self._filled[number] or self._ended:
                return
            bucket = self._saved.bucket(number)
            try:
                self._take(bucket)
            except (TypeError, ValueError) as damage:
                raise BackendCorrupt(f"a saved file makes no sense: {type(damage).__name__}") from damage
            self.left -= len(bucket.keys) if number else 0
            self._filled[number] = 1


class FillingEntries(ByGet):
    """Lookup key → packed record while the dict is being filled. Keys that it lacks are read from the file."""

    def __init__(self, found: dict[bytes, bytes], filling: Filling) -> None:
        self._found = found
        self._filling = filling

    def get(self, name: bytes, default: Any = None) -> Any:
        packed = self._found.get(name)
        if packed is None and (packed := self._filling.find(name)) is None:
            packed = self._found.get(name)  # it may have been filled, and changed, between the two
        return default if packed is None else packed

    def __len__(self) -> int:
        with self._filling.lock:
            return len(self._found) + self._filling.left

    def __iter__(self) -> Iterator[bytes]:
        self._filling.fill_all()
        return iter(self._found)

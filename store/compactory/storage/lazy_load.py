"""Loads a directory's dicts from a saved file, while lookups use them already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import RLock

from compactory.errors import BackendCorrupt
from compactory.storage.saved_file import Bucket, SavedDirectory

__all__ = ["LazyLoad"]

_BUCKETS_PER_STEP = 8  # buckets between two pauses: 150 µs


class LazyLoad:
    """The state of a load of a saved directory into its table, bucket by bucket.

    ``lock`` guards the state. The thread that applies records holds it, so that the bucket of a key is
    loaded before its records are applied.
    ``take`` is the table's, called under the lock; ``end`` is called once, after the last bucket. Any thread may load.
    Raises BackendCorrupt for a malformed file, even if its digest is right.
    """

    def __init__(self, saved: SavedDirectory, take: Callable[[Bucket], None], end: Callable[[], None]) -> None:
        self.lock = RLock()
        self.remaining = saved.count  # entries that are not loaded yet; bucket 0 is loaded at once
        self._saved = saved
        self._take = take
        self._end = end
        self._next = 0
        self._loaded = bytearray(saved.buckets)
        self._is_stopped = False

    def load_keys(self, keys: Iterable[bytes | None]) -> None:
        """Load the buckets of topic keys."""
        for key in keys:
            for number in self._saved.buckets_of(key, named=False) if key else ():
                self.load(number)

    def load_lookup_key(self, lookup_key: bytes) -> None:
        for number in self._saved.buckets_of(lookup_key, named=True):
            self.load(number)

    def load_all(self) -> None:
        """Load all remaining buckets, and let other threads run in between."""
        while self._step():
            time.sleep(0)

    def stop(self) -> None:
        """Stop loading: the entries are being removed."""
        with self.lock:
            self._is_stopped = True

    def find(self, lookup_key: bytes) -> bytes | None:
        """Return the packed record of a lookup key from a bucket that is not loaded yet. Takes no lock."""
        for number in self._saved.buckets_of(lookup_key, named=True):
            if not self._loaded[number]:
                bucket = self._saved.bucket(number)
                if lookup_key in bucket.lookup_keys:
                    return bucket.packed_records[bucket.lookup_keys.index(lookup_key)]
        return None

    def _step(self) -> bool:
        """Load the next buckets; return True if there may be more."""
        with self.lock:
            if self._is_stopped:
                return False
            if self._next < len(self._loaded):
                self._next, begin = min(self._next + _BUCKETS_PER_STEP, len(self._loaded)), self._next
                for number in range(begin, self._next):
                    self.load(number)
                return True
            self._is_stopped = True
            self._end()
            return False

    def load(self, number: int) -> None:
        """Load a bucket, unless it is loaded."""
        if self._loaded[number] or self._is_stopped:
            return
        with self.lock:
            if self._loaded[number] or self._is_stopped:
                return
            bucket = self._saved.bucket(number)
            try:
                self._take(bucket)
            except (TypeError, ValueError) as damage:
                raise BackendCorrupt(f"a saved file is malformed: {type(damage).__name__}") from damage
            self.remaining -= len(bucket.topic_keys) if number else 0
            self._loaded[number] = 1

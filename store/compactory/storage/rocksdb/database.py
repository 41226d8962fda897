"""Opens, reads, writes and flushes a RocksDB database, without a write-ahead log. Maps its errors to Compactory's."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Self

from compactory.errors import BackendCorrupt, BackendFailed, BackendLocked, CompactoryError, StoreClosed
from compactory.storage.rocksdb.folder import disk_failure
from compactory.storage.rocksdb.key_filter import KeyFilter
from compactory.storage.rocksdb.tuning import Resources, library
from compactory.threads import in_forked_children, keep_forever

__all__ = ["DAMAGED", "RocksDatabase", "RocksSnapshot", "Unexplained", "failure_of"]

DAMAGED = "DAMAGED"  # a file of this name in a database's folder: it is not opened again
_KEYS_PAGE = 1000  # keys that a scan reads at a time; other threads may scan in between
_PAIRS_PAGE = 100  # keys and values that a scan reads at a time; values may be large

_LOCKED = ("lock hold by current process", "While lock file", "LOCK: Resource temporarily unavailable")
_DAMAGED = ("Corruption", "No such file or directory", "file is too short", "Not implemented: Unsupported")


class Unexplained(BackendFailed):
    """RocksDB failed with a text that Compactory does not know."""


class RocksDatabase:
    """A RocksDB in one folder: one generation of a topic. One thread writes, any thread reads.

    ``path``    its folder
    ``bulk``    True while it is being loaded and has no readers yet
    ``key_filter``  the keys that a bulk load may have written; None when it is not being loaded
    ``damage``  the first damage that any thread met
    ``get``     key → value or None: the library's own function, as a lookup counts tenths of microseconds. Pass what it
                raises to `failed`

    A process that dies keeps what was flushed: the batches up to one of them, each complete, as all keys are in one
    column family. A thread that meets damage raises BackendCorrupt and marks the folder.
    """

    damage: BackendCorrupt | None = None
    get: Callable[[bytes], bytes | None]

    def __init__(self, path: Path, resources: Resources, *, bulk: bool) -> None:
        self.path = path
        self.bulk = bulk
        self.key_filter = KeyFilter() if bulk else None
        self._resources = resources
        self._snapshots: weakref.WeakSet[RocksSnapshot] = weakref.WeakSet()
        self._closing = Lock()  # guards the snapshots: none may be made while the database is closed
        self._open()
        in_forked_children(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """In a forked child its threads are gone: closing it would hang, or write into the parent's files."""
        keep_forever(self.handle)

    def _open(self) -> None:
        rocks = library()
        try:
            options = self._resources.options(bulk=self.bulk)
            # given for the column family too, else those that it was last opened with would hold (rocksdict 0.3)
            self.handle: Any = rocks.Rdict(str(self.path), options, {"default": options})
        except Exception as error:
            raise failure_of(error, self.path) from error
        unlogged = rocks.WriteOptions()
        unlogged.disable_wal = True
        self.handle.set_write_options(unlogged)
        self.get = self.handle.get

    def read(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None. Raises errors of Compactory, as `failed` returns them."""
        with self.mapped():
            return self.get(key)

    @contextlib.contextmanager
    def mapped(self) -> Iterator[None]:
        """Map what the library raises to errors of Compactory."""
        try:
            yield
        except Exception as error:
            raise self.failed(error) from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of many keys; the interpreter goes on meanwhile."""
        with self.mapped():
            values: list[bytes | None] = self.handle.get(keys)
        return values

    def batch(self) -> Any:
        return library().WriteBatch(raw_mode=True)

    def write(self, batch: Any) -> None:
        """Apply a batch, all or nothing, visible at once. Waits while RocksDB is behind with its flushes."""
        with self.mapped():
            number = self.handle.property_int_value
            while number("rocksdb.is-write-stopped") and not number("rocksdb.background-errors"):
                time.sleep(0.002)  # here, as the library would wait without letting other threads run
            self.handle.write(batch)

    def flush(self, *, wait: bool = True) -> None:
        """Bring to disk what was written; without ``wait`` only begin to."""
        with self.mapped():
            self.handle.flush(wait)

    def snapshot(self) -> RocksSnapshot:
        with self.mapped(), self._closing:
            snapshot = RocksSnapshot(self, *self._consistent_handles())
            self._snapshots.add(snapshot)
        return snapshot

    def _consistent_handles(self) -> tuple[Any, Any]:
        """Return a snapshot to get from and an iterator of the same moment.

        An iterator made by a snapshot is not of its moment but of the present (rocksdict 0.3): hence both, made anew
        where a batch was written in between.
        """
        while True:
            sequence_number = self.handle.latest_sequence_number()
            handles = self.handle.snapshot(), self.handle.iter()
            if self.handle.latest_sequence_number() == sequence_number:
                return handles

    def reopen(self, *, bulk: bool) -> None:
        """Close the database and open it for another use. Nobody may be reading it."""
        self.close()
        self.bulk = bulk
        self.key_filter = None
        self._open()

    def figures(self) -> dict[str, float]:
        with self.mapped():
            return {
                name: self.handle.property_int_value(property_name) or 0 for name, property_name in _FIGURES.items()
            }

    def failed(self, error: Exception) -> CompactoryError:
        """Return the error of Compactory for one of the library. Remembers the first damage and marks the folder."""
        failure = failure_of(error, self.path)
        if isinstance(failure, BackendCorrupt) and self.damage is None:
            mark(self.path)
            self.damage = BackendCorrupt(*failure.args)  # a copy without a traceback, whose frames refer to this object
        return failure

    def close(self) -> None:
        """Flush and close; idempotent. Snapshots that are still held end."""
        with self._closing:
            for snapshot in list(self._snapshots):
                snapshot.release()
            try:
                self.handle.close()
            except Exception as error:
                failure = self.failed(error)
                if not isinstance(failure, StoreClosed):
                    raise failure from error


class RocksSnapshot:
    """The immutable state of a RocksDB when the snapshot was taken. For any thread.

    ``failed``  that of its database
    """

    def __init__(self, database: RocksDatabase, handle: Any, iterator: Any) -> None:
        self.failed = database.failed
        self._handle = handle
        self._iterator = iterator
        self._scanning = Lock()  # guards the iterator

    def snapshot(self) -> Self:
        """Return itself: it does not change."""
        return self

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes = _unreleased(self._handle)[key]
        except Exception as error:
            if error.args == ("key not found",):  # how rocksdict 0.3 says it
                return None
            raise self.failed(error) from error
        return value

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys from ``start`` to before ``stop``, in order."""
        while True:
            page = self.page(start, stop)
            yield from page
            if len(page) < _KEYS_PAGE:
                return
            start = page[-1] + b"\0"

    def page(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the first 1,000 keys that `keys` yields."""
        return [key for _, key in self._walk(start, stop, _KEYS_PAGE)]

    def pairs(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, with keys as `keys` yields them."""
        while True:
            page = [(key, place.value()) for place, key in self._walk(start, stop, _PAIRS_PAGE)]
            yield from page
            if len(page) < _PAIRS_PAGE:
                return
            start = page[-1][0] + b"\0"

    def _walk(self, start: bytes, stop: bytes, limit: int) -> Iterator[tuple[Any, bytes]]:
        """Yield the iterator at each key of a page. To be gone through at once: it holds the iterator."""
        try:
            with self._scanning:
                place = _unreleased(self._iterator)
                place.seek(start)
                for _ in range(limit):
                    key = place.key()
                    if key is None or key >= stop:
                        break
                    yield place, key
                    place.next()
                place.status()  # the library ends at a damaged block as if nothing came after it
        except Exception as error:
            raise self.failed(error) from error

    def release(self) -> None:
        """Free the state; reading it then raises StoreClosed."""
        self._handle = self._iterator = None


def _unreleased(handle: Any) -> Any:
    if handle is None:
        raise library().DbClosedError
    return handle


_FIGURES = {
    "disk_bytes": "rocksdb.total-sst-files-size",
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "table_reader_bytes": "rocksdb.estimate-table-readers-mem",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
    "running_compactions": "rocksdb.num-running-compactions",
    "running_flushes": "rocksdb.num-running-flushes",
    "background_errors": "rocksdb.background-errors",
}


def failure_of(error: Exception, path: Path) -> CompactoryError:
    """Return the error of Compactory for an error of the library, which has only a text."""
    if isinstance(error, CompactoryError):
        return error
    text = str(error)
    if type(error).__name__ == "DbClosedError" or (isinstance(error, RuntimeError) and "borrowed" in text):
        return StoreClosed("the store was closed")  # or is being closed by another thread right now
    if (failure := disk_failure(text, path)) is not None:
        return failure
    if any(part in text for part in _LOCKED):
        return BackendLocked(
            f"{path} is used by another store ({text}); give each store a folder of its own", str(path)
        )
    if any(part in text for part in _DAMAGED):
        return BackendCorrupt(f"{path} is damaged: {text}", str(path))
    return Unexplained(f"{path}: RocksDB failed: {text}", str(path))


def mark(path: Path) -> None:
    """Mark a damaged folder, so that the next start sets it aside, even if this process dies before a rebuild."""
    with contextlib.suppress(OSError):  # then the next start finds the damage again
        (path / DAMAGED).touch()

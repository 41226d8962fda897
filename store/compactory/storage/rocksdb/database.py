"""One RocksDB database: opened, read, written in batches without a log of its own, flushed; errors mapped to ours."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from compactory.cleanup import in_forked_children, keep_forever
from compactory.errors import BackendCorrupt, BackendFailed, BackendLocked, CompactoryError, StoreClosed
from compactory.storage.rocksdb.folder import disk_failure
from compactory.storage.rocksdb.ordered_database import PAGE, Database, Snapshot
from compactory.storage.rocksdb.tuning import Resources, library

__all__ = ["DAMAGED", "RocksDatabase", "Unexplained", "failure_of"]

DAMAGED = "DAMAGED"  # a file of this name in a database's folder: it is not opened again
_PAIRS = 100  # keys and values that a scan takes at a time, which may be large; other threads may scan in between

_LOCKED = ("lock hold by current process", "While lock file", "LOCK: Resource temporarily unavailable")
_DAMAGED = ("Corruption", "No such file or directory", "file is too short", "Not implemented: Unsupported")


class Unexplained(BackendFailed):
    """RocksDB failed for a reason that its text does not tell us."""


class RocksDatabase(Database):
    """A RocksDB in one folder.

    A process that dies keeps what was flushed: always a prefix of the batches, each whole, as all is in one column
    family. Where damage is met, by whichever thread, BackendCorrupt is raised and the folder is marked.
    """

    def __init__(self, path: Path, resources: Resources, *, bulk: bool) -> None:
        self.path = path
        self.bulk = bulk
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

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of many keys; the interpreter goes on meanwhile."""
        with self.mapped():
            found: list[bytes | None] = self.handle.get(keys)
        return found

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
        with self.mapped():
            self.handle.flush(wait)

    def snapshot(self) -> RocksSnapshot:
        with self.mapped(), self._closing:
            snapshot = RocksSnapshot(self, *self._moment())
            self._snapshots.add(snapshot)
        return snapshot

    def _moment(self) -> tuple[Any, Any]:
        """Return a snapshot to get from and an iterator of the same moment.

        An iterator made by a snapshot is not of its moment but of the present (rocksdict 0.3): hence both, made anew
        where a batch was written in between.
        """
        while True:
            before = self.handle.latest_sequence_number()
            found = self.handle.snapshot(), self.handle.iter()
            if self.handle.latest_sequence_number() == before:
                return found

    def reopen(self, *, bulk: bool) -> None:
        self.close()
        self.bulk = bulk
        self._open()

    def figures(self) -> dict[str, float]:
        with self.mapped():
            return {name: self.handle.property_int_value(wanted) or 0 for name, wanted in _FIGURES.items()}

    def _meaning(self, error: Exception) -> CompactoryError:
        found = failure_of(error, self.path)
        if isinstance(found, BackendCorrupt) and self.damage is None:
            mark(self.path)
        return found

    def close(self) -> None:
        """Flush and close; idempotent. Snapshots that are still held end."""
        with self._closing:
            for snapshot in list(self._snapshots):
                snapshot.release()
            try:
                self.handle.close()
            except Exception as error:
                found = self.failed(error)
                if not isinstance(found, StoreClosed):
                    raise found from error


class RocksSnapshot(Snapshot):
    """A RocksDB as it was at one moment."""

    def __init__(self, database: RocksDatabase, handle: Any, iterator: Any) -> None:
        self.failed = database.failed
        self._handle = handle
        self._iterator = iterator
        self._scanning = Lock()  # guards the iterator

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        try:
            found: bytes = _held(self._handle)[key]
        except Exception as error:
            if error.args == ("key not found",):  # how rocksdict 0.3 says it
                return None
            raise self.failed(error) from error
        return found

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        while True:
            page = [key for _, key in self._walk(start, stop, PAGE)]
            yield from page
            if len(page) < PAGE:
                return
            start = page[-1] + b"\0"

    def pairs(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            page = [(key, place.value()) for place, key in self._walk(start, stop, _PAIRS)]
            yield from page
            if len(page) < _PAIRS:
                return
            start = page[-1][0] + b"\0"

    def _walk(self, start: bytes, stop: bytes, limit: int) -> Iterator[tuple[Any, bytes]]:
        """Yield the iterator at each key of a page. To be gone through at once: it holds the iterator."""
        try:
            with self._scanning:
                place = _held(self._iterator)
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
        self._handle = self._iterator = None


def _held(handle: Any) -> Any:
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
    """Return our error for one of the library, which has only texts."""
    if isinstance(error, CompactoryError):
        return error
    said = str(error)
    if type(error).__name__ == "DbClosedError" or (isinstance(error, RuntimeError) and "borrowed" in said):
        return StoreClosed("the store was closed")  # or is being closed by another thread right now
    if (found := disk_failure(said, path)) is not None:
        return found
    if any(text in said for text in _LOCKED):
        return BackendLocked(
            f"{path} is used by another store ({said}); give each store a folder of its own", str(path)
        )
    if any(text in said for text in _DAMAGED):
        return BackendCorrupt(f"{path} is damaged: {said}", str(path))
    return Unexplained(f"{path}: RocksDB failed: {said}", str(path))


def mark(path: Path) -> None:
    """Have a damaged folder set aside at the next start, should the process not live to rebuild it."""
    with contextlib.suppress(OSError):  # then damage is met, and dealt with, once more
        (path / DAMAGED).touch()

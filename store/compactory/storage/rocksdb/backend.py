"""`RocksDB`: the backend that a store on disk is given."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from compactory.errors import BackendCorrupt, BackendFailed, CompactoryError, ConfigError
from compactory.storage.backend import Backend
from compactory.storage.rocksdb.database import DAMAGED, RocksDatabase, Unexplained
from compactory.storage.rocksdb.folder import Lock, TopicFolder, remove
from compactory.storage.rocksdb.topic_storage import RocksTopicStorage, TopicState
from compactory.storage.rocksdb.tuning import Resources, Tuning
from compactory.threads import in_forked_children, start_thread

__all__ = ["RocksDB"]

log = logging.getLogger("compactory.store")


class RocksDB(Backend):
    """Keeps entries on disk: ``GlobalStore(…, backend=RocksDB("/var/lib/directories"))``.

    ``path``               a folder for this store alone; created if it is missing
    ``block_cache_bytes``  memory for blocks of files, shared by all topics
    ``row_cache_bytes``    additional memory for single entries: helps if few keys get most of the lookups
    ``memtable_bytes``     memory for entries that are not on disk yet, all topics together
    ``compression``        ``lz4``, ``none``, ``zstd`` or ``snappy``
    ``configure``          a function that changes the ``rocksdict.Options`` of each database before it is opened

    A restart reads only new records of the topics. After a crash the disk holds a consistent earlier state. A damaged
    folder is set aside (the last one of each topic is kept) and its topic read anew.

    Nothing is opened before the store starts. Raises ConfigError with every problem at once, also if the package
    rocksdict is missing. The store's ``start`` raises BackendLocked if another store uses the folder, BackendFailed
    if it can't be read or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        block_cache_bytes: int = 128 << 20,
        row_cache_bytes: int = 0,
        memtable_bytes: int = 64 << 20,
        compression: str = "lz4",
        configure: Callable[[Any], object] | None = None,
    ) -> None:
        self._tuning = Tuning(
            block_cache_bytes=block_cache_bytes,
            row_cache_bytes=row_cache_bytes,
            memtable_bytes=memtable_bytes,
            compression=compression,
            configure=configure,
        )
        problems = [] if str(path) else ["path is empty; name a folder"]
        problems.extend(self._tuning.problems())
        if problems:
            raise ConfigError(problems)
        self.path = Path(path)
        self._lock = Lock(self.path)
        self._resources: Resources | None = None
        self._serving: dict[str, RocksTopicStorage] = {}  # topic -> what the pointer names
        self._former: list[weakref.finalize[Any, RocksDatabase]] = []  # generations that may still have readers
        self._disposing: list[Thread] = []  # removing generations without readers
        in_forked_children(self._abandon)

    def __repr__(self) -> str:
        return f"<RocksDB {str(self.path)!r}>"

    def open(self, topic: str) -> RocksTopicStorage:
        self._lock.take()
        folder = TopicFolder(self.path, topic)
        generation = folder.current()
        folder.tidy(generation)
        storage = None if generation is None else self._resumed(folder, generation, topic)
        if storage is None:
            storage = self._new(folder, topic)
            folder.point_to(storage.database.path)
        storage.is_kept = True
        self._serving[topic] = storage
        return storage

    def fresh(self, topic: str) -> RocksTopicStorage:
        """Return a new, empty topic storage beside the served one; it is removed when it is closed unpromoted."""
        return self._new(TopicFolder(self.path, topic), topic)

    def promote(self, topic: str, storage: Any) -> None:
        """Make `open` return ``storage``; the former one is closed and removed after its last reader."""
        storage.flush()
        storage.is_kept = True
        former = self._serving.get(topic)
        if former is storage:
            return
        folder = TopicFolder(self.path, topic)
        folder.point_to(storage.database.path)
        self._serving[topic] = storage
        if former is not None:
            database = former.database
            self._former = [finalizer for finalizer in self._former if finalizer.alive]
            damage = None if database.damage is None else str(database.damage)
            self._disposing[:] = [thread for thread in self._disposing if thread.is_alive()]
            disposal = database.handle, folder, database.path, damage
            self._former.append(weakref.finalize(database, _dispose_in_thread, self._disposing, disposal))

    def figures(self) -> Mapping[str, float]:
        """Return the memory that all topics share, in bytes; empty before the start."""
        return {} if self._resources is None else self._resources.figures()

    def close(self) -> None:
        """Close former generations, also those with readers, and release the folder."""
        for finalizer in self._former:
            arguments = finalizer.detach()
            if arguments is not None:
                with contextlib.suppress(CompactoryError):  # it is removed, or set aside
                    arguments[0].close()
                _dispose(*arguments[2][1])
        for thread in self._disposing:
            thread.join()
        self._former.clear()
        self._serving.clear()
        self._lock.release()

    def _abandon(self) -> None:
        """Leave the folder, and generations that are to be removed, to the process that opened them; after a fork."""
        for finalizer in self._former:
            finalizer.detach()
        self._lock.release()

    def _resumed(self, folder: TopicFolder, generation: Path, topic: str) -> RocksTopicStorage | None:
        """Return the topic storage in a folder; None where it had to be set aside, or holds nothing."""
        if (generation / DAMAGED).exists():
            folder.set_aside(generation, "it was found damaged while it was read")
            return None
        try:
            database = RocksDatabase(generation, self._shared(), bulk=False)
        except BackendCorrupt as error:
            folder.set_aside(generation, error)
            return None
        except Unexplained as error:
            self._new(folder, topic).close()  # raises where it is the options that are refused
            folder.set_aside(generation, error)
            return None
        try:
            state = TopicState.of(database)
            if state is not None and state.topic != topic:
                raise ValueError(f"it holds topic {state.topic!r}")
        except (BackendCorrupt, ValueError) as error:
            database.close()
            folder.set_aside(generation, error)
            return None
        if state is not None:
            return RocksTopicStorage(database, state)
        database.close()
        remove(generation)
        return None

    def _new(self, folder: TopicFolder, topic: str) -> RocksTopicStorage:
        generation = folder.next()
        try:
            return RocksTopicStorage(RocksDatabase(generation, self._shared(), bulk=True), TopicState(topic))
        except BackendFailed as error:
            remove(generation)
            if isinstance(error, Unexplained) and "Invalid argument" in str(error):
                raise ConfigError(f"RocksDB refuses its options: {error}") from error
            raise

    def _shared(self) -> Resources:
        if self._resources is None:
            self._resources = Resources(self._tuning)
        return self._resources


def _dispose_in_thread(threads: list[Thread], disposal: tuple[Any, TopicFolder, Path, str | None]) -> None:
    """Dispose of a generation in a thread of its own: the last reader may be an event loop."""
    thread = start_thread("dispose", _dispose, *disposal)
    if thread is not None:
        threads.append(thread)


def _dispose(handle: Any, folder: TopicFolder, generation: Path, damage: str | None) -> None:
    try:
        handle.close()
    except Exception:
        log.debug("%s was not closed well", generation, exc_info=True)
    if damage is None:
        remove(generation)
    else:
        folder.set_aside(generation, damage)

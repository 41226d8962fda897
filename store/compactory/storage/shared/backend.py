"""`Shared`: the backend of several processes on one machine that share a copy."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compactory.cleanup import in_forked_children
from compactory.errors import BackendCorrupt, BackendLocked, CompactoryError, ConfigError
from compactory.storage.backend import Backend
from compactory.storage.ordered.contents import State
from compactory.storage.ordered.directory_storage import OrderedDirectoryStorage
from compactory.storage.ordered.folder import Lock, TopicFolder, remove
from compactory.storage.ordered.topic_storage import OrderedTopicStorage
from compactory.storage.shared.database import SharedDatabase, SharedEntries
from compactory.storage.shared.environment import Using, abandon, copy_of, library

__all__ = ["Shared"]

log = logging.getLogger("compactory.store")


class SharedTopicStorage(OrderedTopicStorage[SharedDatabase]):
    """A topic's generation: `OrderedTopicStorage`, over what processes share."""

    def directory_storage(self, directory: str) -> OrderedDirectoryStorage:
        found, part = super().directory_storage(directory), self._contents.part(directory, "entries")
        found.entries = SharedEntries(self.database, part.prefix, part.size)
        return found

    def flush(self) -> None:
        """Take a newer copy, or bound the file, also where nothing was written since."""
        super().flush()
        self.database.flush()


class Shared(Backend):
    """One copy for all processes of a machine: ``GlobalStore(…, backend=Shared("/dev/shm/directories"))`` in each.

    ``path``       a folder on a local file system or in memory (``/dev/shm``), the same in each process
    ``map_bytes``  what a topic may take there at most; only address space, so give plenty

    The first process owns the copy and writes it. The others map it and wait at their start until it is complete. Each
    process reads Kafka itself and keeps in its own memory what it has read beyond the copy; every few seconds it takes
    a newer copy. So each is a whole store of its own, with its own positions, barriers, watches and errors, and stays
    current when the owner ends. The next process that starts then owns the copy.

    Raises ConfigError with every problem, also if the package lmdb is missing. ``start`` raises BackendFailed if the
    folder can't be read or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, map_bytes: int = 64 << 30) -> None:
        problems = [] if str(path) else ["path is empty; name a folder"]
        if type(map_bytes) is not int or map_bytes < 1 << 20:
            problems.append(f"map_bytes must be a whole number of bytes, {1 << 20} or more, not {map_bytes!r}")
        if problems:
            raise ConfigError(problems)
        library()
        self.path = Path(path).absolute()
        self._map_bytes = map_bytes
        self._lock = Lock(self.path)
        self._owns = False
        self._served: dict[str, SharedDatabase] = {}  # the owner's, by topic
        in_forked_children(self._abandon)

    def __repr__(self) -> str:
        return f"<Shared {str(self.path)!r}>"

    def available(self, topics: Iterable[str]) -> bool:
        """Say whether this process owns the copy, or its owner has all of these topics complete."""
        try:
            self._lock.take()
        except BackendLocked:
            return all(self._complete(TopicFolder(self.path, topic)) for topic in topics)
        self._owns = True
        return True

    def open(self, topic: str) -> SharedTopicStorage:
        folder = TopicFolder(self.path, topic)
        path = folder.current()
        if not self._owns:
            try:
                return self._storage(folder, path, topic)
            except CompactoryError:
                if folder.current() == path:
                    raise
                return self.open(topic)  # its owner went on to another one meanwhile, and removed this one
        folder.tidy(path)
        if path is not None and not Using(path).is_sound():
            folder.set_aside(path, "the machine ended without closing it")
            path = None
        if path is not None:
            try:
                return self._kept(topic, self._storage(folder, path, topic))
            except (BackendCorrupt, ValueError) as error:
                folder.set_aside(path, error)
        storage = self._storage(folder, folder.next(), topic, bulk=True)
        folder.point_to(storage.database.path)
        return self._kept(topic, storage)

    def fresh(self, topic: str) -> SharedTopicStorage:
        """Return a new, empty topic storage beside the served one; a follower's is in its memory at first."""
        folder = TopicFolder(self.path, topic)
        return self._storage(folder, folder.next() if self._owns else None, topic, bulk=True)

    def promote(self, topic: str, storage: Any) -> None:
        """Let the others take ``storage`` from now on; the former one goes with its last reader."""
        former = self._served.get(topic)
        if self._owns and former is not None and former is not storage.database:
            before = former.path
            TopicFolder(self.path, topic).point_to(storage.database.path)
            self._kept(topic, storage)
            remove(before)

    def figures(self) -> dict[str, float]:
        """Return whether this process owns the copy."""
        return {"owner": float(self._owns)}

    def close(self) -> None:
        """Let the next process own the copy."""
        self._lock.leave()

    def _storage(self, folder: TopicFolder, path: Path | None, topic: str, *, bulk: bool = False) -> SharedTopicStorage:
        database = SharedDatabase(folder, path, self._map_bytes, bulk=bulk, owned=self._owns)
        storage = SharedTopicStorage(database, State.of(database.get) or State(topic))
        storage.kept = not self._owns
        return storage

    def _kept(self, topic: str, storage: SharedTopicStorage) -> SharedTopicStorage:
        storage.kept = True
        self._served[topic] = storage.database
        return storage

    def _complete(self, folder: TopicFolder) -> bool:
        copy = copy_of(folder, self._map_bytes)
        try:
            state = State.of(copy[1].get) if copy is not None else None
        except ValueError:
            return False
        return state is not None and state.checkpoint is not None and state.checkpoint.complete

    def _abandon(self) -> None:
        abandon()
        self._lock.leave()

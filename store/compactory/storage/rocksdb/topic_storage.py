"""A generation of a topic on disk: entries, indexes and checkpoint, written in one batch per commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from msgspec.structs import replace

from compactory.errors import BackendFailed, CompactoryError
from compactory.storage.backend import TopicStorage
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.rocksdb.contents import Contents, TopicState
from compactory.storage.rocksdb.database import RocksDatabase
from compactory.storage.rocksdb.directory_storage import RocksDirectoryStorage
from compactory.storage.rocksdb.folder import remove
from compactory.storage.rocksdb.keys import STATE

__all__ = ["RocksTopicStorage"]

log = logging.getLogger("compactory.store")

_BULK_WRITE_CHANGES = 64_000  # changes that a bulk load writes at once: the last ones are waited for when it is ready
_BULK_WRITE_BYTES = 24 << 20  # or about so many bytes
_IDLE_FLUSH_INTERVAL = 60.0  # seconds that a checkpoint without new records may wait


class RocksTopicStorage(TopicStorage):
    """A topic's generation in one database. Belongs to one writing thread.

    Until it is complete for the first time it has no readers, and no restart uses it. Then it is loaded in bulk:
    commits are gathered and written some 64,000 changes at a time. From the first complete commit on, each is written
    by itself and visible when `commit` returns. Raises BackendCorrupt and BackendFailed from every method but
    `close`; after the first nothing more is written.
    """

    persistent = True

    def __init__(self, database: RocksDatabase, state: TopicState) -> None:
        self.database = database
        self.checkpoint = state.checkpoint
        self._state = state
        self._contents = Contents(database, state)
        self._has_unwritten_checkpoint = False
        self._has_unflushed = False  # something was written that was not flushed yet
        self._flushed_at = float("-inf")
        self._broken: BackendFailed | None = None
        self._is_closed = False
        self.is_kept = False  # the folder stays when this is closed

    def directory_storage(self, directory: str) -> RocksDirectoryStorage:
        return RocksDirectoryStorage(self._contents, directory)

    def commit(self, checkpoint: Checkpoint) -> None:
        self._check()
        previous, self._state.checkpoint = self._state.checkpoint, checkpoint
        self._has_unwritten_checkpoint = True
        bulk = self.database.bulk
        changes, size = self._contents.unwritten()
        if bulk and not checkpoint.complete:
            if changes >= _BULK_WRITE_CHANGES or size >= _BULK_WRITE_BYTES:
                self._write()
                self.database.flush(wait=False)  # so that nothing is ever looked up in a bulk database's memory
            return
        if not changes and previous is not None and replace(previous, caught_up=checkpoint.caught_up) == checkpoint:
            return  # written with the next change, by a flush after a while, or by close
        self._write()
        if bulk:
            self._open_for_reading()

    def flush(self) -> None:
        """Bring commits to disk; once a minute if only the checkpoint changed."""
        self._check()
        if self.database.bulk:
            return
        age = time.monotonic() - self._flushed_at
        if not self._has_unflushed and age < _IDLE_FLUSH_INTERVAL:
            return
        if self._has_unwritten_checkpoint:
            self._write(with_changes=False)
        if self._has_unflushed:
            self._flush()

    def figures(self) -> Mapping[str, float]:
        """Return what RocksDB says of its size and work, and how many names all mappings hold; for any thread.

        Empty where the database is closed, or being opened for readers.
        """
        try:
            return self.database.figures() | {"keys": self._contents.size()}
        except CompactoryError:
            return {}

    def close(self) -> None:
        """Bring everything to disk and close. Never raises: what could not be written is in the topic."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._has_unwritten_checkpoint and not (self.database.bulk or self._broken or self.database.damage):
                self._write(with_changes=False)
            self.database.close()
        except CompactoryError as error:
            log.warning("a topic storage was not closed well, it is read on from its last flush: %s", error)
        if not self.is_kept:
            remove(self.database.path)

    def _check(self) -> None:
        """Raise the first failure of any thread."""
        failed = self._broken or self.database.damage
        if failed is not None:
            raise type(failed)(*failed.args)

    def _write(self, *, with_changes: bool = True) -> None:
        """Write the checkpoint, and all changes; without them where some may be newer than the checkpoint."""
        try:
            batch = self.database.batch()
            if with_changes:
                self._contents.stage(batch)
            batch.put(STATE, self._state.data())
            self.database.write(batch)
        except BackendFailed as error:
            self._broken = type(error)(*error.args)  # not the one that is raised: that refers to everything it passed
            raise
        self._has_unwritten_checkpoint, self._has_unflushed = False, True

    def _flush(self) -> None:
        self.database.flush()
        self._has_unflushed, self._flushed_at = False, time.monotonic()

    def _open_for_reading(self) -> None:
        self._flush()
        self.database.reopen(bulk=False)
        self._contents.source.key_filter = None

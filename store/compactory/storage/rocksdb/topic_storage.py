"""One generation of a topic on disk: its parts, how far it was read, written together in one batch per commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import orjson

from compactory.errors import BackendFailed, CompactoryError
from compactory.storage.checkpoint import CaughtUp, Checkpoint
from compactory.storage.rocksdb.database import Database
from compactory.storage.rocksdb.directory_storage import RocksDirectoryStorage
from compactory.storage.rocksdb.folder import remove
from compactory.storage.rocksdb.key_space import KeySpace, RocksPostings, Seen, Source
from compactory.storage.rocksdb.keys import MAX_PARTS, STATE, part_prefix

__all__ = ["FORMAT", "RocksTopicStorage", "State"]

log = logging.getLogger("compactory.store")

FORMAT = 2  # of keys and state; another one is read anew
_GATHERED = 64_000  # changes that a bulk load writes at once: the last ones are waited for when it is ready
_GATHERED_BYTES = 24 << 20  # or so many bytes
_LATE = 60.0  # seconds that a checkpoint may wait which says nothing but that there was nothing


class State:
    """The one record under `STATE`, in which a topic storage describes itself."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.parts: dict[str, int] = {}  # "directory NUL part" -> number
        self.sizes: dict[str, dict[int, int]] = {}
        self.checkpoint: Checkpoint | None = None

    @classmethod
    def read(cls, data: bytes) -> State:
        """Read a stored one. Raises ValueError for what is none of this format."""
        try:
            held = orjson.loads(data)
            if held["format"] != FORMAT:
                raise ValueError(f"format {held['format']} is not {FORMAT}")
            state = cls(held["topic"])
            state.parts = dict(held["parts"])
            state.sizes = {name: _numbered(sizes) for name, sizes in held["sizes"].items()}
            checkpoint = held["checkpoint"]
            checkpoint["positions"] = _numbered(checkpoint["positions"])
            tails = checkpoint.pop("tails", {}).items()  # its name in folders of format 2
            checkpoint["last_record_epochs"] = {int(number): tuple(tail) for number, tail in tails}
            caught_up = checkpoint["caught_up"].items()
            checkpoint["caught_up"] = {int(number): CaughtUp(**mark) for number, mark in caught_up}
            state.checkpoint = Checkpoint(**checkpoint)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks {error}") from error
        return state

    def data(self) -> bytes:
        """Return the bytes to store."""
        assert self.checkpoint is not None
        checkpoint = asdict(self.checkpoint)
        checkpoint["tails"] = checkpoint.pop("last_record_epochs")
        held = {
            "format": FORMAT,
            "topic": self.topic,
            "parts": self.parts,
            "sizes": self.sizes,
            "checkpoint": checkpoint,
        }
        return orjson.dumps(held, option=orjson.OPT_NON_STR_KEYS)


class Contents:
    """The parts of a topic storage, by directory and name. Belongs to the writing thread."""

    def __init__(self, database: Database, state: State) -> None:
        self.database = database
        self.state = state
        self.source = Source(database, Seen() if database.bulk else None)
        self._parts: dict[str, KeySpace] = {}
        self._postings: dict[str, RocksPostings] = {}

    def part(self, directory: str, name: str) -> KeySpace:
        """Return a mapping of a directory, the same one each time."""
        key = f"{directory}\0{name}"
        if key not in self._parts:
            prefix = part_prefix(self._number(key))
            sizes = self.state.sizes.get(key, {})
            self._parts[key] = KeySpace(self.source, prefix, sizes, by_partition=name == "entries")
        return self._parts[key]

    def postings(self, directory: str, index: str) -> RocksPostings:
        """Return the writing side of an index, the same one each time."""
        key = f"{directory}\0\0{index}"
        if key not in self._postings:
            self._postings[key] = RocksPostings(part_prefix(self._number(key)))
        return self._postings[key]

    def stage(self, batch: Any) -> bool:
        """Put what is fresh into a batch; say whether there was anything."""
        staged = [part.stage(batch) for part in self._parts.values()]
        staged += [postings.stage(batch) for postings in self._postings.values()]
        return any(staged)

    def settle(self) -> None:
        """Count what the batch changes."""
        for key, part in self._parts.items():
            part.settle()
            self.state.sizes[key] = part.sizes

    def size(self) -> int:
        """Return how many names all mappings hold, as of the last write."""
        return sum(sum(sizes.values()) for sizes in list(self.state.sizes.values()))

    def _number(self, key: str) -> int:
        number = self.state.parts.setdefault(key, len(self.state.parts) + 1)
        if number > MAX_PARTS:
            raise BackendFailed(f"{self.database.path}: more than {MAX_PARTS} mappings and indexes in one topic")
        return number


class RocksTopicStorage:
    """A topic's generation in one database. Belongs to one writing thread.

    Until it is complete for the first time it has no readers, and is loaded in bulk: commits are gathered and written
    some 64,000 changes at a time, still whole, with the newest checkpoint. From the first complete commit on, each is
    written by itself and visible when `commit` returns. Raises BackendCorrupt and BackendFailed from every method but
    `close`; after the first nothing more is written.
    """

    persistent = True

    def __init__(self, database: Database, state: State) -> None:
        self.database = database
        self.checkpoint = state.checkpoint
        self._state = state
        self._contents = Contents(database, state)
        self._batch = database.batch()
        self._gathered = False  # the batch or the checkpoint holds what was not written yet
        self._written = False  # something was written that was not flushed yet
        self._flushed_at = float("-inf")
        self._broken: BackendFailed | None = None
        self._closed = False
        self.kept = False  # whether the folder stays when this is closed

    def directory_storage(self, directory: str) -> RocksDirectoryStorage:
        """Return the place of a directory."""
        return RocksDirectoryStorage(self._contents, directory)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make all that was written since the last commit visible together with how far it goes, all or nothing."""
        self._check()
        former, self._state.checkpoint = self._state.checkpoint, checkpoint
        staged = self._contents.stage(self._batch)
        self._gathered = True
        bulk = self.database.bulk
        if not staged and former is not None and replace(former, caught_up=checkpoint.caught_up) == checkpoint:
            return  # written with the next change, by a flush after a while, or by close
        if bulk and not checkpoint.complete:
            if len(self._batch) < _GATHERED and self._batch.size_in_bytes() < _GATHERED_BYTES:
                return
            self._write()
            self.database.flush(wait=False)  # so that nothing is ever looked up in a bulk database's memory
            return
        self._write()
        if bulk:
            self._open_for_reading()

    def flush(self) -> None:
        """Bring to disk what was committed; where that is only that there was nothing new, once a minute."""
        self._check()
        if not self._written and not len(self._batch) and time.monotonic() - self._flushed_at < _LATE:
            return
        if self._gathered:
            self._write()
        if self._written:
            self.database.flush()
            self._written = False
            self._flushed_at = time.monotonic()

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
        if self._closed:
            return
        self._closed = True
        try:
            if self._gathered and self._broken is None and self.database.damage is None:
                self._write()
            self.database.close()
        except CompactoryError as error:
            log.warning("a topic storage was not closed well, it is read on from its last flush: %s", error)
        if not self.kept:
            remove(self.database.path)

    def _check(self) -> None:
        """Raise what went wrong before, in whichever thread."""
        failed = self._broken or self.database.damage
        if failed is not None:
            raise type(failed)(*failed.args)

    def _write(self) -> None:
        batch, self._batch = self._batch, self.database.batch()
        try:
            self._contents.settle()
            batch.put(STATE, self._state.data())
            self.database.write(batch)
        except BackendFailed as error:
            self._broken = type(error)(*error.args)  # not the one that is raised: that refers to everything it passed
            raise
        self._gathered, self._written = False, True

    def _open_for_reading(self) -> None:
        self.database.flush()
        self.database.reopen(bulk=False)
        self._contents.source.seen = None
        self._written, self._flushed_at = False, time.monotonic()


def _numbered(sizes: Mapping[str, int]) -> dict[int, int]:
    return {int(number): size for number, size in sizes.items()}

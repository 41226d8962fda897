"""A generation of a topic on disk: the storages of its directories and the checkpoint, written in one batch per commit.

One record in the database, under `STATE`, describes it: see `TopicState`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from compactory.codec.decoding import Term
from compactory.errors import BackendFailed, CompactoryError
from compactory.storage.backend import DirectoryStorage, LookupMapping, ReadSnapshot, TopicStorage
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.rocksdb.database import RocksDatabase, RocksSnapshot
from compactory.storage.rocksdb.folder import remove
from compactory.storage.rocksdb.key_space import KeySpace, RocksPostings
from compactory.storage.rocksdb.keys import (
    MAX_PARTS,
    STATE,
    after,
    part_prefix,
    posting_term,
    term_of,
    term_prefix,
)

__all__ = ["FORMAT", "RocksDirectoryStorage", "RocksTopicStorage", "TopicState"]

log = logging.getLogger("compactory.store")

FORMAT = 2  # of keys and state; another one is read anew
_BULK_WRITE_CHANGES = 64_000  # changes that a bulk load writes at once: the last ones are waited for when it is ready
_BULK_WRITE_BYTES = 24 << 20  # or so many bytes
_IDLE_FLUSH_INTERVAL = 60.0  # seconds that a checkpoint without new records may wait


class TopicState(msgspec.Struct):
    """The record in which a topic storage describes itself. ``parts`` is directory NUL part → number."""

    topic: str
    parts: dict[str, int] = {}
    sizes: dict[str, dict[int, int]] = {}
    checkpoint: Checkpoint | None = None
    format: int = FORMAT

    @classmethod
    def of(cls, database: RocksDatabase) -> TopicState | None:
        """Return the state of a database; None if it is empty. Raises ValueError for a state of another format."""
        if (data := database.read(STATE)) is None:
            return None
        try:
            state = msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"it can't be read: {error}") from error
        if state.format != FORMAT:
            raise ValueError(f"format {state.format} is not {FORMAT}")
        return state


class RocksTopicStorage(TopicStorage):
    """A topic's generation in one database. Belongs to one writing thread.

    Until it is complete for the first time it has no readers, and is loaded in bulk: commits are gathered and written
    some 64,000 changes at a time, still whole, with the newest checkpoint. From the first complete commit on, each is
    written by itself and visible when `commit` returns. Raises BackendCorrupt and BackendFailed from every method but
    `close`; after the first nothing more is written.
    """

    persistent = True

    def __init__(self, database: RocksDatabase, state: TopicState) -> None:
        self.database = database
        self.checkpoint = state.checkpoint
        self.is_kept = False  # the folder stays when this is closed
        self._state = state
        self._parts: dict[str, KeySpace] = {}
        self._postings: dict[str, RocksPostings] = {}
        self._batch = database.batch()
        self._has_unwritten = False  # the batch or the checkpoint has what was not written yet
        self._has_unflushed = False  # something was written that was not flushed yet
        self._flushed_at = float("-inf")
        self._broken: BackendFailed | None = None
        self._is_closed = False

    def directory_storage(self, directory: str) -> RocksDirectoryStorage:
        return RocksDirectoryStorage(self, directory)

    def part(self, directory: str, name: str) -> KeySpace:
        """Return a mapping of a directory, the same one each time."""
        key = f"{directory}\0{name}"
        if key not in self._parts:
            sizes = self._state.sizes.get(key, {})
            self._parts[key] = KeySpace(self.database, self._prefix(key), sizes, by_partition=name == "entries")
        return self._parts[key]

    def postings(self, directory: str, index: str) -> RocksPostings:
        key = f"{directory}\0\0{index}"
        if key not in self._postings:
            self._postings[key] = RocksPostings(self._prefix(key))
        return self._postings[key]

    def commit(self, checkpoint: Checkpoint) -> None:
        self._check()
        previous, self._state.checkpoint = self._state.checkpoint, checkpoint
        has_changes = self._stage()
        self._has_unwritten = True
        bulk = self.database.bulk
        if not has_changes and previous is not None and replace(previous, caught_up=checkpoint.caught_up) == checkpoint:
            return  # written with the next change, by a flush after a while, or by close
        if bulk and not checkpoint.complete:
            if len(self._batch) >= _BULK_WRITE_CHANGES or self._batch.size_in_bytes() >= _BULK_WRITE_BYTES:
                self._write()
                self.database.flush(wait=False)  # so that nothing is ever looked up in a bulk database's memory
            return
        self._write()
        if bulk:
            self._flush()
            self.database.reopen(bulk=False)

    def flush(self) -> None:
        """Bring commits to disk; once a minute if only the checkpoint changed."""
        self._check()
        age = time.monotonic() - self._flushed_at
        if not self._has_unflushed and not len(self._batch) and age < _IDLE_FLUSH_INTERVAL:
            return
        if self._has_unwritten:
            self._write()
        if self._has_unflushed:
            self._flush()

    def figures(self) -> Mapping[str, float]:
        """Return what RocksDB says of its size and work, and the number of keys in all mappings; for any thread.

        Empty where the database is closed, or being opened for readers.
        """
        try:
            keys = sum(sum(sizes.values()) for sizes in list(self._state.sizes.values()))
            return self.database.figures() | {"keys": keys}
        except CompactoryError:
            return {}

    def close(self) -> None:
        """Bring everything to disk and close. Never raises: what could not be written is in the topic."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._has_unwritten and not (self._broken or self.database.damage):
                self._write()
            self.database.close()
        except CompactoryError as error:
            kind = type(error).__name__
            log.warning("a topic storage was not closed well, it is read on from its last flush: %s", kind)
        if not self.is_kept:
            remove(self.database.path)

    def _prefix(self, key: str) -> bytes:
        number = self._state.parts.setdefault(key, len(self._state.parts) + 1)
        if number > MAX_PARTS:
            raise BackendFailed(f"{self.database.path}: more than {MAX_PARTS} mappings and indexes in one topic")
        return part_prefix(number)

    def _check(self) -> None:
        """Raise the first failure of any thread."""
        failure = self._broken or self.database.damage
        if failure is not None:
            raise type(failure)(*failure.args)

    def _stage(self) -> bool:
        """Put uncommitted changes into the batch; return True if there were any."""
        changed: list[KeySpace | RocksPostings] = [*self._parts.values(), *self._postings.values()]
        staged = [part.stage(self._batch) for part in changed]
        return any(staged)

    def _write(self) -> None:
        batch, self._batch = self._batch, self.database.batch()
        try:
            for key, part in self._parts.items():
                part.settle()
                self._state.sizes[key] = part.sizes
            batch.put(STATE, msgspec.json.encode(self._state))
            self.database.write(batch)
        except BackendFailed as error:
            self._broken = type(error)(*error.args)  # not the one that is raised: that refers to everything it passed
            raise
        self._has_unwritten, self._has_unflushed = False, True

    def _flush(self) -> None:
        self.database.flush()
        self._has_unflushed, self._flushed_at = False, time.monotonic()


class RocksDirectoryStorage(DirectoryStorage):
    """The storage of one directory in RocksDB: single lookups read the database, everything else a snapshot."""

    def __init__(self, storage: RocksTopicStorage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._part = storage.part(directory, "entries")
        self.entries: Mapping[bytes, bytes] = Entries(storage.database, self._part.prefix, self._part.size)

    def mapping(self, part: str) -> KeySpace:
        return self._storage.part(self._directory, part)

    def postings(self, index: str) -> RocksPostings:
        return self._storage.postings(self._directory, index)

    def reading(self) -> RocksReadSnapshot:
        return RocksReadSnapshot(self, self._storage.database.snapshot(), self._part)

    def snapshot(self, part: str, _term_of: Callable[[str, bytes], Term | None]) -> RocksReadSnapshot:
        return RocksReadSnapshot(self, self._storage.database.snapshot(), self.mapping(part))

    def sizes(self) -> dict[int, int]:
        return dict(self._part.sizes)


class Entries(LookupMapping):
    """Lookup key → packed record, as committed last or of a snapshot. For any thread."""

    def __init__(self, source: RocksDatabase | RocksSnapshot, prefix: bytes, size: Callable[[], int]) -> None:
        self._source = source
        self._prefix = prefix
        self._size = size

    def get(self, key: bytes, default: Any = None) -> Any:
        try:
            packed = self._source.get(self._prefix + key)
        except Exception as error:
            raise self._source.failed(error) from error
        return default if packed is None else packed

    def __len__(self) -> int:
        return self._size()

    def __iter__(self) -> Iterator[bytes]:
        return _keys(self._source.snapshot(), self._prefix)


class RocksReadSnapshot(ReadSnapshot):
    """A snapshot of a directory, as committed. For any thread."""

    def __init__(self, storage: RocksDirectoryStorage, snapshot: RocksSnapshot, part: KeySpace) -> None:
        self._sizes = dict(part.sizes)
        size = sum(self._sizes.values())
        self._postings = storage.postings
        self._prefix = part.prefix
        self._snapshot = snapshot
        self.entries: Mapping[bytes, bytes] = Entries(snapshot, part.prefix, lambda: size)

    def sizes(self) -> dict[int, int]:
        return self._sizes

    def close(self) -> None:
        self._snapshot.release()

    def range(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return _keys(self._snapshot, self._prefix, start, stop)

    def pairs(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        width = len(self._prefix)
        pairs = self._snapshot.pairs(*_bounds(self._prefix, start or b"", stop))
        return ((key[width:], packed) for key, packed in pairs)

    def keys_of_term_between(self, index: str, term: Term, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        return _keys(self._snapshot, self._postings(index).prefix + term_prefix(term), start, stop)

    def terms(self, index: str) -> Iterator[Term]:
        """Yield every term once; a term with many keys costs no more than a page of them."""
        prefix = self._postings(index).prefix
        start, stop, width = prefix, after(prefix), len(prefix)
        while page := self._snapshot.page(start, stop):
            prefixes = dict.fromkeys(posting_term(key[width:]) for key in page)
            yield from map(term_of, prefixes)
            start = after(prefix + posting_term(page[-1][width:]))


def _bounds(prefix: bytes, start: bytes, stop: bytes | None) -> tuple[bytes, bytes]:
    return prefix + start, after(prefix) if stop is None else prefix + stop


def _keys(snapshot: RocksSnapshot, prefix: bytes, start: bytes = b"", stop: bytes | None = None) -> Iterator[bytes]:
    width = len(prefix)
    return (key[width:] for key in snapshot.keys(*_bounds(prefix, start, stop)))

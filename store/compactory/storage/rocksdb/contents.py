"""The mappings and indexes of a topic storage, and the record in which it describes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from compactory.errors import BackendFailed
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.rocksdb.database import RocksDatabase
from compactory.storage.rocksdb.key_space import DatabaseReader, KeyFilter, KeySpace, RocksPostings
from compactory.storage.rocksdb.keys import MAX_PARTS, STATE, part_prefix

__all__ = ["FORMAT", "Contents", "TopicState"]

FORMAT = 2  # of keys and state; another one is read anew


class TopicState(msgspec.Struct):
    """The one record under `STATE`, in which a topic storage describes itself."""

    topic: str
    parts: dict[str, int] = {}
    """Directory NUL part → number."""
    sizes: dict[str, dict[int, int]] = {}
    checkpoint: Checkpoint | None = None
    format: int = FORMAT

    @classmethod
    def of(cls, get: Callable[[bytes], bytes | None]) -> TopicState | None:
        """Read the state of a database; None if it is empty. Raises ValueError for a state of another format."""
        if (data := get(STATE)) is None:
            return None
        try:
            state = msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"it can't be read: {error}") from error
        if state.format != FORMAT:
            raise ValueError(f"format {state.format} is not {FORMAT}")
        return state

    def data(self) -> bytes:
        """Return the bytes to store."""
        return msgspec.json.encode(self)


class Contents:
    """The parts of a topic storage, by directory and name. Belongs to the writing thread."""

    def __init__(self, database: RocksDatabase, state: TopicState) -> None:
        self.database = database
        self.state = state
        self.source = DatabaseReader(database, KeyFilter() if database.bulk else None)
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

    def unwritten(self) -> tuple[int, int]:
        """Return the number of changes since the last write, and about how many bytes they have."""
        changes = [part.unwritten() for part in self._parts.values()]
        postings = sum(postings.unwritten() for postings in self._postings.values())
        return sum(count for count, _ in changes) + postings, sum(size for _, size in changes)

    def stage(self, batch: Any) -> None:
        """Put all changes into a batch that is about to be written, and bring the sizes up to date."""
        for postings in self._postings.values():
            postings.stage(batch)
        for key, part in self._parts.items():
            part.stage(batch)
            self.state.sizes[key] = part.sizes

    def size(self) -> int:
        """Return how many names all mappings hold, as of the last write."""
        return sum(sum(sizes.values()) for sizes in list(self.state.sizes.values()))

    def _number(self, key: str) -> int:
        number = self.state.parts.setdefault(key, len(self.state.parts) + 1)
        if number > MAX_PARTS:
            raise BackendFailed(f"{self.database.path}: more than {MAX_PARTS} mappings and indexes in one topic")
        return number

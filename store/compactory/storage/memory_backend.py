"""The backend that keeps entries in dicts of this process, and saves them in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError
from compactory.storage.backend import Backend, SaveSnapshot, TopicStorage
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.file_saver import FileSaver, file_name, read_saved_file
from compactory.storage.memory_directory import MemoryDirectoryStorage
from compactory.storage.saved_file import SavedFile

__all__ = ["Memory"]


class Memory(Backend):
    """Keeps entries in dicts, for the fastest lookups. Readers see each change at once.

    ``path``        a folder in which the entries of each topic are saved; None: a restart reads the topics from the
                    beginning. Several processes may share it; any of them writes
    ``save_every``  seconds between two files of a topic. The first is written when the topic is ready

    A restart maps the file, answers from it and reads only newer records. Meanwhile a thread loads the dicts: half a
    second per million entries. A file that is damaged or does not fit the topic is ignored. A thread writes the file,
    with 8 bytes of memory per entry and the former values of entries that change meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, save_every: float = 300.0) -> None:
        problems = ["path is empty; name a folder"] if path is not None and not str(path) else []
        seconds: Any = save_every
        if not (isinstance(seconds, int | float) and seconds > 0):
            problems.append(f"save_every must be a number of seconds above 0, not {save_every!r}")
        if problems:
            raise ConfigError(problems)
        self._folder = None if path is None else Path(path)
        self._save_every = save_every
        self._opened: set[str] = set()

    def open(self, topic: str) -> MemoryTopicStorage:
        """Return the topic as it was saved, or an empty topic storage."""
        if topic in self._opened:  # what was saved could not be used after all
            return self.fresh(topic)
        self._opened.add(topic)
        saved = None if self._folder is None else read_saved_file(self._folder, topic)
        return MemoryTopicStorage(self._saver(topic, saved), saved)

    def fresh(self, topic: str) -> MemoryTopicStorage:
        return MemoryTopicStorage(self._saver(topic, None))

    def _saver(self, topic: str, saved: SavedFile | None) -> FileSaver | None:
        if self._folder is None:
            return None
        return FileSaver(self._folder / file_name(topic), topic, self._save_every, saved)


class MemoryTopicStorage(TopicStorage):
    """The dicts of each directory, and the file that saves them."""

    def __init__(self, saver: FileSaver | None = None, saved: SavedFile | None = None) -> None:
        self.persistent = saver is not None
        self.checkpoint = None if saved is None else saved.checkpoint
        self._saver = saver
        self._saved = {} if saved is None else saved.directories
        self._directories: dict[str, MemoryDirectoryStorage] = {}

    def directory_storage(self, directory: str) -> MemoryDirectoryStorage:
        if directory not in self._directories:
            self._directories[directory] = MemoryDirectoryStorage(self._saved.get(directory))
        return self._directories[directory]

    def save(self, committed: Checkpoint, take_snapshots: Callable[[], Sequence[SaveSnapshot]]) -> None:
        if self._saver is not None:
            self._saver.begin(committed, take_snapshots)

    def close(self) -> None:
        """Wait for the file that is being written, then free the entries, even if a view refers to them."""
        if self._saver is not None:
            self._saver.finish()
        for directory_storage in self._directories.values():
            directory_storage.clear()

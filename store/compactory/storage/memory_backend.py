"""The backend that keeps everything in dicts of this process; gone with it, unless they are saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError
from compactory.storage.backend import Backend, Cut, TopicStorage
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.memory_directory import MemoryDirectoryStorage
from compactory.storage.saved_file import SavedFile
from compactory.storage.saving import Saving, fetched, file_name, kept

__all__ = ["Memory"]


class Memory(Backend):
    """Everything in dicts: the fastest there is. Readers see each change at once, step by step.

    ``path``        a folder in which the entries of each topic are saved; None: a restart reads the topics from the
                    beginning. Several processes may share it; any of them writes
    ``save_every``  seconds between two files of a topic. The first is written when the topic is ready
    ``bootstrap``   a file or URL (fsspec) that `compactory snapshot` wrote, for the first start; a folder ends with /

    A restart maps the file, answers from it and reads only newer records; the dicts are filled meanwhile, half
    a second a million. A file that is damaged, or may not be gone on with, is ignored. It is written by a thread of
    its own, which costs 8 bytes an entry and what changes meanwhile.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        save_every: float = 300.0,
        bootstrap: str | os.PathLike[str] | None = None,
    ) -> None:
        problems = ["path is empty; name a folder"] if path is not None and not str(path) else []
        if bootstrap is not None and not str(bootstrap):
            problems.append("bootstrap is empty; name a file or URL")
        seconds: Any = save_every
        if not (isinstance(seconds, int | float) and seconds > 0):
            problems.append(f"save_every must be a number of seconds above 0, not {save_every!r}")
        if problems:
            raise ConfigError(problems)
        self._folder = None if path is None else Path(path)
        self._save_every = save_every
        self._bootstrap = None if bootstrap is None else os.fspath(bootstrap)
        self._opened: set[str] = set()

    def open(self, topic: str) -> MemoryTopicStorage:
        """Return the topic as it was saved, or an empty topic storage."""
        if topic in self._opened:  # what was saved could not be used after all
            return self.fresh(topic)
        self._opened.add(topic)
        saved = None if self._folder is None else kept(self._folder, topic)
        if saved is None and self._bootstrap is not None:
            saved = fetched(self._bootstrap, topic)
        return MemoryTopicStorage(self._saving(topic, saved), saved)

    def fresh(self, topic: str) -> MemoryTopicStorage:
        return MemoryTopicStorage(self._saving(topic, None))

    def _saving(self, topic: str, saved: SavedFile | None) -> Saving | None:
        if self._folder is None:
            return None
        return Saving(self._folder / file_name(topic), topic, self._save_every, saved)


class MemoryTopicStorage(TopicStorage):
    """Dicts by directory, and the file in which they are saved."""

    def __init__(self, saving: Saving | None = None, saved: SavedFile | None = None) -> None:
        self.persistent = saving is not None
        self.checkpoint = None if saved is None else saved.checkpoint
        self._saving = saving
        self._saved = {} if saved is None else saved.directories
        self._directories: dict[str, MemoryDirectoryStorage] = {}

    def directory_storage(self, directory: str) -> MemoryDirectoryStorage:
        if directory not in self._directories:
            self._directories[directory] = MemoryDirectoryStorage(self._saved.get(directory))
        return self._directories[directory]

    def save(self, committed: Checkpoint, cuts: Callable[[], Sequence[Cut]]) -> None:
        if self._saving is not None:
            self._saving.begin(committed, cuts)

    def close(self) -> None:
        """Free the entries, also where a view still refers to them, once the file that is being written is there."""
        if self._saving is not None:
            self._saving.finish()
        for directory_storage in self._directories.values():
            directory_storage.clear()

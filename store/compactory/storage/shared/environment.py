"""LMDB environments: one for each folder and process, and what their errors mean here."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from compactory.cleanup import keep_forever
from compactory.clock import boot
from compactory.errors import BackendCorrupt, BackendFailed, CompactoryError, ConfigError, StoreClosed, extra_remedy
from compactory.storage.ordered.folder import TopicFolder, disk_failure

__all__ = ["Using", "abandon", "copy_of", "failure_of", "opened"]

log = logging.getLogger("compactory.store")

_READERS = 1022  # transactions that all processes together may read by
_CLOSING = 5.0  # seconds at most that closing an environment may take
_opening = Lock()  # guards the environments
_environments: WeakValueDictionary[Path, Any] = WeakValueDictionary()  # a process may open each only once


def library() -> Any:
    """Return the module ``lmdb``, imported when first needed. Raises ConfigError with the remedy."""
    try:
        import lmdb
    except ImportError as error:
        raise ConfigError(f"Shared needs the package lmdb ({error}): {extra_remedy('shared')}") from error
    return lmdb


def opened(path: Path, map_bytes: int, *, create: bool) -> Any:
    """Return the environment in a folder; ``create`` it if it is missing. Raises BackendFailed, BackendCorrupt."""
    with _opening:
        found = _environments.get(path)
        if found is None:
            try:
                if create:
                    path.mkdir(parents=True, exist_ok=True)
                found = _environments[path] = _open(path, map_bytes, create=create)
            except Exception as error:
                raise failure_of(error, path) from error
        return found


def _open(path: Path, map_bytes: int, *, create: bool) -> Any:
    lmdb, until = library(), time.monotonic() + _CLOSING
    while True:
        try:
            # not synced: what a crash of the machine may have damaged is known by `Using`, and read anew
            return lmdb.open(
                str(path), map_size=map_bytes, max_readers=_READERS, sync=False, metasync=False, meminit=False,
                readahead=False, create=create,
            )  # fmt: skip
        except lmdb.Error as error:
            if "already open" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.001)  # another thread has dropped it and is about to close it


def copy_of(folder: TopicFolder, map_bytes: int) -> tuple[Path, Any] | None:
    """Return the folder of the copy that counts, and a transaction that reads it; None where there is none now."""
    path = folder.current()
    if path is None or not Using(path).now():
        return None
    try:
        return path, opened(path, map_bytes, create=False).begin()
    except CompactoryError:
        if folder.current() == path:
            raise
        return None  # its owner went on to another one meanwhile, and removed this one


def abandon() -> None:
    """Leave all environments to the process that opened them; for a forked child."""
    for environment in list(_environments.values()):
        keep_forever(environment)
    _environments.clear()


def failure_of(error: Exception, path: Path) -> CompactoryError:
    """Return our error for one of the library."""
    if isinstance(error, CompactoryError):
        return error
    lmdb = library()
    if "closed/deleted/dropped" in str(error):
        return StoreClosed("the store was closed")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return BackendCorrupt(f"{path} is damaged: {error}", str(path))
    if isinstance(error, lmdb.MapFullError):
        return BackendFailed(f"{path}: map_bytes is too small for the entries; raise it, then restart", str(path))
    if os.strerror(errno.EIO) in str(error):  # what LMDB says of a write that was cut off
        told = f"{path}: the disk is full or fails ({error}); free space or enlarge it, then restart"
        return BackendFailed(told, str(path))
    return disk_failure(str(error), path) or BackendFailed(f"{path}: {error}", str(path))


class Using:
    """A file that says during which run of the machine a folder was written, and not closed since.

    Only a crash of the machine can damage what was not synced: then the file names another run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "USING"

    def is_sound(self) -> bool:
        """Say whether no crash of the machine came in between."""
        return self._said() in ("", boot())

    def now(self) -> bool:
        """Say whether it was begun in this run of the machine, and not ended."""
        return self._said() == (boot() or "?")

    def begin(self) -> None:
        """Say that it is being written."""
        self._path.write_text(boot() or "?", encoding="ascii")

    def end(self) -> None:
        """Say that all of it is on disk."""
        self._path.unlink(missing_ok=True)

    def _said(self) -> str:
        try:
            return self._path.read_text(encoding="ascii")
        except FileNotFoundError:
            return ""

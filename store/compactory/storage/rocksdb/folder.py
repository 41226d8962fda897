"""The folders of a store on disk: a lock, and per topic numbered generations with a pointer to the one that counts.

    PATH/
        compactory.lock         the process that uses it
        TOPIC-CHECKSUM/
            CURRENT             number of the generation that `open` gives
            000001/             a database
            damaged-20260131T120000Z/   what was set aside last

Every step can be cut off: the pointer is replaced at once, and generations that it does not name are removed at the
next start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from compactory.errors import BackendFailed, BackendLocked
from compactory.threads import wait_for_dropped_stores

__all__ = ["Lock", "TopicFolder", "disk_failure", "remove"]

log = logging.getLogger("compactory.store")

_POINTER = "CURRENT"
_ASIDE = "damaged-"
_REMOVALS = 20  # attempts to remove a folder
_REMOVAL_PAUSE = 0.05  # seconds after an attempt
_FULL = ("No space left", "Disk quota exceeded", os.strerror(errno.ENOSPC))
_FORBIDDEN = ("Permission denied", "Read-only file system", "Operation not permitted")


class Lock:
    """Keeps other stores, of this process too, from a folder. Raises BackendLocked, BackendFailed from `take`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "compactory.lock"
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock, or name the process that has it. Taking it again does nothing."""
        if self._file is not None:
            return
        with _file_system_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _lock(file):
            wait_for_dropped_stores(10)  # a cell of a notebook that is run again drops the store that has the folder
        if not _lock(file):
            holder = os.read(file, 200).decode(errors="replace").split()
            os.close(file)
            raise _locked(self._folder, holder)
        try:
            with _file_system_errors(self._folder):
                os.ftruncate(file, 0)
                os.write(file, f"{os.getpid()} {socket.gethostname()}\n".encode())
        except BackendFailed:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        """Release the lock; idempotent. A forked child closes only its copy, the parent keeps the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class TopicFolder:
    """The generations of one topic. Raises BackendFailed for what the file system refuses."""

    def __init__(self, root: Path, topic: str) -> None:
        # the checksum tells apart what a file system may take for the same: T and t
        self.path = root / f"{topic[:200]}-{zlib.crc32(topic.encode()):08x}"

    def current(self) -> Path | None:
        """Return the current generation; None where there is none, or the pointer is malformed."""
        with _file_system_errors(
            self.path
        ):  # too many open files, for example, are no reason to take the folder for empty
            try:
                number = int((self.path / _POINTER).read_text(encoding="ascii"))
            except (FileNotFoundError, NotADirectoryError, ValueError):
                return None
        generation = self._generation(number)
        return generation if generation.is_dir() else None

    def next(self) -> Path:
        """Return a folder for a new generation; it does not exist yet."""
        with _file_system_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        return self._generation(max(self._numbers(), default=0) + 1)

    def point_to(self, generation: Path) -> None:
        """Make a generation the current one, even if the machine stops right after."""
        written = self.path / f"{_POINTER}.new"
        with _file_system_errors(self.path):
            with written.open("w", encoding="ascii") as file:
                file.write(f"{generation.name}\n")
                file.flush()
                os.fsync(file.fileno())
            written.replace(self.path / _POINTER)
            _sync_folder(self.path)

    def tidy(self, keep: Path | None) -> None:
        """Remove generations that were never finished or are not current any more."""
        for number in self._numbers():
            if self._generation(number) != keep:
                remove(self._generation(number))

    def set_aside(self, generation: Path, reason: object) -> None:
        """Keep a damaged generation for an operator to look into, in place of the one that was kept before."""
        aside = self.path / f"{_ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        former = [path for path in self.path.iterdir() if path.name.startswith(_ASIDE)]
        if generation.exists():
            for path in former:
                remove(path)
            with _file_system_errors(self.path):
                generation.rename(aside)
        log.error("the stored entries of a topic can't be used, it is read anew: %s; set aside as %s", reason, aside)

    def _generation(self, number: int) -> Path:
        return self.path / f"{number:06d}"

    def _numbers(self) -> list[int]:
        if not self.path.is_dir():
            return []
        return [int(path.name) for path in self.path.iterdir() if path.name.isdigit()]


def remove(folder: Path) -> None:
    """Remove a folder and its contents, within about a second. The next start removes what is left.

    RocksDB may write files into the folder meanwhile: a database ends after its last iterator, which may end just now.
    """
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.unlink(missing_ok=True)  # where it is no folder
        if not folder.exists():
            return
        time.sleep(_REMOVAL_PAUSE)


def disk_failure(text: str, path: Path) -> BackendFailed | None:
    """Return the error of Compactory for a text about a full disk or missing rights; None for other texts."""
    if any(part in text for part in _FULL):
        problem = f"the disk is full ({text}); free space or enlarge the volume, then restart"
    elif any(part in text for part in _FORBIDDEN):
        problem = f"{text}; the process (user {os.geteuid()}) needs to read and write this folder"
    else:
        return None
    return BackendFailed(f"{path}: {problem}", str(path))


@contextlib.contextmanager
def _file_system_errors(folder: Path) -> Iterator[None]:
    """Raise BackendFailed instead of errors of the file system."""
    try:
        yield
    except OSError as error:
        path = folder.absolute()
        raise disk_failure(str(error), path) or BackendFailed(f"{path}: {error}", str(path)) from error


def _locked(folder: Path, holder: list[str]) -> BackendLocked:
    pid = int(holder[0]) if holder and holder[0].isdigit() else None
    user = (
        "another store" if pid is None else f"process {pid}" if pid != os.getpid() else "another store of this process"
    )
    host = f" on {holder[1]}" if len(holder) > 1 and holder[1] != socket.gethostname() else ""
    return BackendLocked(
        f"{folder.absolute()} is used by {user}{host}; stop that, or give each store a folder of its own",
        str(folder),
        pid,
    )


def _lock(file: int) -> bool:
    """Lock an open file without waiting; return True on success, or where files can't be locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _sync_folder(folder: Path) -> None:
    """Bring a rename to disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

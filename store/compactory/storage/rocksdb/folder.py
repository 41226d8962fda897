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

from compactory.cleanup import wait_for_dropped_stores
from compactory.errors import BackendFailed, BackendLocked

__all__ = ["Lock", "TopicFolder", "disk_failure", "remove"]

log = logging.getLogger("compactory.store")

_POINTER = "CURRENT"
_ASIDE = "damaged-"
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
        with _told(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _lock(file):
            wait_for_dropped_stores(10)  # a cell of a notebook that is run again drops the store that has the folder
        if not _lock(file):
            holder = os.read(file, 200).decode(errors="replace").split()
            os.close(file)
            raise _locked(self._folder, holder)
        try:
            with _told(self._folder):
                os.ftruncate(file, 0)
                os.write(file, f"{os.getpid()} {socket.gethostname()}\n".encode())
        except BackendFailed:
            os.close(file)
            raise
        self._file = file

    def leave(self) -> None:
        """Give the lock back; idempotent. A forked child only lets go of its copy, the parent keeps the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class TopicFolder:
    """The generations of one topic. Raises BackendFailed for what the file system refuses."""

    def __init__(self, root: Path, topic: str) -> None:
        # the checksum tells apart what a file system may take for the same: T and t
        self.path = root / f"{topic[:200]}-{zlib.crc32(topic.encode()):08x}"

    def current(self) -> Path | None:
        """Return the generation that counts; None where there is none, or the pointer makes no sense."""
        with _told(self.path):  # too many open files, for example, are no reason to take the folder for empty
            try:
                number = int((self.path / _POINTER).read_text(encoding="ascii"))
            except (FileNotFoundError, NotADirectoryError, ValueError):
                return None
        found = self._generation(number)
        return found if found.is_dir() else None

    def next(self) -> Path:
        """Return a folder for a new generation; it does not exist yet."""
        with _told(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        return self._generation(max(self._numbers(), default=0) + 1)

    def point_to(self, generation: Path) -> None:
        """Let a generation count from now on, whenever the machine stops."""
        written = self.path / f"{_POINTER}.new"
        with _told(self.path):
            with written.open("w", encoding="ascii") as file:
                file.write(f"{generation.name}\n")
                file.flush()
                os.fsync(file.fileno())
            written.replace(self.path / _POINTER)
            _sync_folder(self.path)

    def tidy(self, keep: Path | None) -> None:
        """Remove generations that were never finished or count no more."""
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
            with _told(self.path):
                generation.rename(aside)
        log.error("what was kept of a topic can't be used and is read anew: %s; set aside as %s", reason, aside)

    def _generation(self, number: int) -> Path:
        return self.path / f"{number:06d}"

    def _numbers(self) -> list[int]:
        if not self.path.is_dir():
            return []
        return [int(path.name) for path in self.path.iterdir() if path.name.isdigit()]


def remove(folder: Path) -> None:
    """Remove a folder and what is in it, as far as that is possible; the rest goes at the next start."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.unlink(missing_ok=True)  # where it is no folder


def disk_failure(said: str, path: Path) -> BackendFailed | None:
    """Return our error for what is said of a disk that is full or forbidden."""
    if any(text in said for text in _FULL):
        what = f"the disk is full ({said}); free space or enlarge the volume, then restart"
    elif any(text in said for text in _FORBIDDEN):
        what = f"{said}; the process (user {os.geteuid()}) needs to read and write this folder"
    else:
        return None
    return BackendFailed(f"{path}: {what}", str(path))


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Raise BackendFailed for what the file system refuses."""
    try:
        yield
    except OSError as error:
        place = folder.absolute()
        raise disk_failure(str(error), place) or BackendFailed(f"{place}: {error}", str(place)) from error


def _locked(folder: Path, holder: list[str]) -> BackendLocked:
    pid = int(holder[0]) if holder and holder[0].isdigit() else None
    who = (
        "another store" if pid is None else f"process {pid}" if pid != os.getpid() else "another store of this process"
    )
    host = f" on {holder[1]}" if len(holder) > 1 and holder[1] != socket.gethostname() else ""
    return BackendLocked(
        f"{folder.absolute()} is used by {who}{host}; stop that, or give each store a folder of its own",
        str(folder),
        pid,
    )


def _lock(file: int) -> bool:
    """Lock an open file without waiting; say whether that succeeded. Where nothing can lock, RocksDB's lock holds."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename last."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

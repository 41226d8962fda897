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
import fcntl
import logging
import os
import shutil
import socket
import time
import zlib
from pathlib import Path

from compactory.errors import BackendFailed, BackendLocked
from compactory.storage.rocksdb.database import failure_of

__all__ = ["Lock", "TopicFolder"]

log = logging.getLogger("compactory.store")

_POINTER = "CURRENT"
_ASIDE = "damaged-"


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
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _refused(error, self._folder) from error
        if not _lock(file):
            holder = os.read(file, 200).decode(errors="replace").split()
            os.close(file)
            raise _locked(self._folder, holder)
        self._file = file
        try:
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()} {socket.gethostname()}\n".encode())
        except OSError as error:
            self.leave()
            raise _refused(error, self._folder) from error

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
        try:
            number = int((self.path / _POINTER).read_text(encoding="ascii"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:  # as with too many open files: no reason to remove what is there
            raise _refused(error, self.path) from error
        found = self._generation(number)
        return found if found.is_dir() else None

    def next(self) -> Path:
        """Return a folder for a new generation; it does not exist yet."""
        with contextlib.suppress(FileExistsError):
            self._attempt(lambda: self.path.mkdir(parents=True))
        return self._generation(max(self._numbers(), default=0) + 1)

    def point_to(self, generation: Path) -> None:
        """Let a generation count from now on, whenever the machine stops."""
        written = self.path / f"{_POINTER}.new"

        def replace() -> None:
            with written.open("w", encoding="ascii") as file:
                file.write(f"{generation.name}\n")
                file.flush()
                os.fsync(file.fileno())
            written.replace(self.path / _POINTER)
            _sync_folder(self.path)

        self._attempt(replace)

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
            self._attempt(lambda: generation.rename(aside))
        log.error("what was kept of a topic can't be used and is read anew: %s; set aside as %s", reason, aside)

    def _generation(self, number: int) -> Path:
        return self.path / f"{number:06d}"

    def _numbers(self) -> list[int]:
        if not self.path.is_dir():
            return []
        return [int(path.name) for path in self.path.iterdir() if path.name.isdigit()]

    def _attempt(self, step: object) -> None:
        try:
            step()  # type: ignore[operator]
        except FileExistsError:
            raise
        except OSError as error:
            raise _refused(error, self.path) from error


def remove(folder: Path) -> None:
    """Remove a folder and what is in it, as far as that is possible; the rest goes at the next start."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.unlink(missing_ok=True)  # where it is no folder


def _refused(error: OSError, folder: Path) -> BackendFailed:
    found = failure_of(error, folder.absolute())
    assert isinstance(found, BackendFailed)
    return BackendFailed(str(found), str(folder))


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

"""``.compactory`` in the working directory: the demo that runs here, its processes, and files for the user to look at.

All of it is deleted when the demo ends. A killed demo leaves its folders, named in the lock file; the next demo
deletes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError

from ..stack.postgres import open_to_all

__all__ = ["Home"]

_SCRATCH = "compactory-demo-"
_FILES = ("demo.json", "demo.order", "demo.toml", "terminal_acquirer.json", "tpp.properties")


class Home:
    """The folder of one demo, locked by it. Owned by one thread."""

    def __init__(self, folder: Path = Path(".compactory")) -> None:
        self.folder = folder
        self.scratch = Path()
        self._lock: TextIOWrapper | None = None

    def owner(self) -> int | None:
        """Return the process id of the demo that runs in this folder; None if there is none."""
        try:
            with (self.folder / "demo.lock").open("r+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with (self.folder / "demo.lock").open(encoding="utf-8") as lock:
                return int(_read_lock(lock).get("pid", 0))
        except OSError:
            return None
        return None

    def claim(self) -> None:
        """Lock the folder and make a scratch folder for the servers' data.

        Raises ConfigError naming the demo that runs here already.
        """
        self.folder.mkdir(exist_ok=True)
        self._lock = self._locked()
        self._remove_leftovers()
        self.scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=_temporary()))
        self.scratch.chmod(0o711)  # Postgres, as another user when we are root, has a folder of its own in it
        self._lock.truncate(0)
        self._lock.seek(0)
        json.dump({"pid": os.getpid(), "scratch": str(self.scratch)}, self._lock)
        self._lock.flush()

    def read(self, name: str) -> str | None:
        """Return the text of a file in the folder; None if there is no such file."""
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Write a file into the folder atomically."""
        assert name in _FILES, "or it would not be deleted"
        draft = self.folder / f"{name}.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.folder / name)

    def delete(self, name: str) -> None:
        """Delete a file in the folder, if there is one."""
        (self.folder / name).unlink(missing_ok=True)

    def announce(self, description: Mapping[str, Any]) -> None:
        """Write demo.json."""
        self.write("demo.json", json.dumps(description, indent=2) + "\n")

    def description(self) -> dict[str, Any]:
        """Return the contents of demo.json; empty if there is no such file."""
        return json.loads(self.read("demo.json") or "{}")  # type: ignore[no-any-return]

    def remove(self) -> None:
        """Delete the demo's files, and the folder if it is then empty."""
        if self._lock is None:
            return
        shutil.rmtree(self.scratch, ignore_errors=True)
        for name in _FILES:
            self.delete(name)
            self.delete(f"{name}.new")
        (self.folder / "demo.lock").unlink()  # last, and still locked
        self._lock.close()
        self._lock = None
        with suppress(OSError):
            self.folder.rmdir()

    def _locked(self) -> TextIOWrapper:
        path = self.folder / "demo.lock"
        while True:
            lock = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _read_lock(lock).get("pid", 0)
                lock.close()
                raise ConfigError(
                    f"a demo runs in this folder already (pid {pid}, see {self.folder / 'demo.json'});"
                    f" end it with: kill {pid}, or start this one in another folder"
                ) from None
            if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
                return lock
            lock.close()  # the demo before us deleted it in between

    def _remove_leftovers(self) -> None:
        assert self._lock is not None
        leftover = Path(str(_read_lock(self._lock).get("scratch", "")))
        if leftover.name.startswith(_SCRATCH):
            shutil.rmtree(leftover, ignore_errors=True)
        self.delete("demo.json")
        self.delete("demo.order")


def _temporary() -> str | None:
    """Return the folder for temporary folders; None for the default.

    Postgres started by root runs as another user, who can't enter a private TMPDIR such as that of pam_tmpdir.
    """
    usual = Path(tempfile.gettempdir()).resolve()
    places = [usual, Path("/tmp"), Path("/var/tmp")] if os.geteuid() == 0 else []  # noqa: S108 - mkdtemp names it
    return next((str(place) for place in places if _everybody_may_enter(place)), None)


def _everybody_may_enter(folder: Path) -> bool:
    return folder.is_dir() and all(open_to_all(part) for part in (folder, *folder.parents))


def _read_lock(lock: TextIOWrapper) -> dict[str, Any]:
    lock.seek(0)
    try:
        document = json.loads(lock.read())
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}

"""``.compactory`` in the working directory: who runs a demo here, what it runs, and files for the user to look at.

Everything in it goes when the demo ends. A demo that was killed leaves its folders behind, named in the lock file:
the next one removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError

__all__ = ["Home"]

_SCRATCH = "compactory-demo-"


class Home:
    """The folder of one demo, locked by it. Owned by one thread."""

    def __init__(self, folder: Path = Path(".compactory")) -> None:
        self.folder = folder
        self.scratch = Path()
        self._lock: TextIOWrapper | None = None
        self._files = ["demo.json"]

    def claim(self) -> None:
        """Lock the folder and make a scratch folder for the servers' data.

        Raises ConfigError naming the demo that runs here already.
        """
        self.folder.mkdir(exist_ok=True)
        self._lock = self._locked()
        self._remove_leftovers()
        self.scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
        self.scratch.chmod(0o711)  # Postgres, as another user when we are root, has a folder of its own in it
        self._lock.truncate(0)
        self._lock.seek(0)
        json.dump({"pid": os.getpid(), "scratch": str(self.scratch)}, self._lock)
        self._lock.flush()

    def write(self, name: str, text: str) -> Path:
        """Put a file there for the user to read."""
        if name not in self._files:
            self._files.append(name)
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def announce(self, description: Mapping[str, Any]) -> None:
        """Write demo.json; whoever sees it sees all of it."""
        draft = self.folder / "demo.json.new"
        draft.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        draft.replace(self.folder / "demo.json")

    def remove(self) -> None:
        """Delete all that the demo put there, and the folder when nothing else is in it."""
        if self._lock is None:
            return
        for name in self._files:
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        (self.folder / "demo.lock").unlink(missing_ok=True)
        self._lock.close()
        self._lock = None
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _locked(self) -> TextIOWrapper:
        path = self.folder / "demo.lock"
        while True:
            lock = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(self._running(lock)) from None
            if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
                return lock
            lock.close()  # the demo before us deleted it in between

    def _running(self, lock: TextIOWrapper) -> str:
        pid = _read(lock).get("pid", "unknown")
        lock.close()
        return (
            f"a demo runs in this folder already (pid {pid}, see {self.folder / 'demo.json'});"
            f" end it with: kill {pid}, or start this one in another folder"
        )

    def _remove_leftovers(self) -> None:
        assert self._lock is not None
        left = Path(str(_read(self._lock).get("scratch", "")))
        if left.name.startswith(_SCRATCH):
            shutil.rmtree(left, ignore_errors=True)
        (self.folder / "demo.json").unlink(missing_ok=True)


def _read(lock: TextIOWrapper) -> dict[str, Any]:
    lock.seek(0)
    try:
        found = json.loads(lock.read())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

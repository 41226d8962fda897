"""``.compactory`` in the working directory: the lock of the demo that runs here, its state, files to look at.

All of it is deleted when the demo ends. A killed demo leaves its folders, named in the lock file; the next demo
deletes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError

__all__ = ["Home"]

_SCRATCH = "compactory-demo-"
_CONNECTORS = ("terminal_acquirer.json", "tpp.properties", "ledger.json")
_FILES = ("demo.json", "demo.json.new", "demo.toml", *_CONNECTORS, "demo.lock")


class Home:
    """The folder of one demo. Owned by one thread."""

    def __init__(self, folder: Path = Path(".compactory")) -> None:
        self.folder = folder
        self.scratch = Path()
        self._lock: int | None = None

    def owner(self) -> int | None:
        """Return the process id of the demo that runs in this folder; None if there is none."""
        with suppress(FileNotFoundError):
            lock = os.open(self.folder / "demo.lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(self._read("demo.lock").get("pid", 0))
            finally:
                os.close(lock)
        return None

    def claim(self) -> None:
        """Lock the folder and make a scratch folder for the servers' data. Raises ConfigError if a demo runs here."""
        self.folder.mkdir(exist_ok=True)
        lock = os.open(self.folder / "demo.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            pid = self._read("demo.lock").get("pid", 0)
            raise ConfigError(
                f"a demo runs in this folder already (pid {pid}, see {self.folder / 'demo.json'});"
                f" end it with: kill {pid}, or start this one in another folder"
            ) from None
        self._lock = lock
        leftover = Path(str(self._read("demo.lock").get("scratch", "")))
        if leftover.name.startswith(_SCRATCH):
            shutil.rmtree(leftover, ignore_errors=True)
        (self.folder / "demo.json").unlink(missing_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
        self.scratch.chmod(0o711)  # Postgres, as another user when we are root, has a folder of its own in it
        (self.folder / "demo.lock").write_text(json.dumps({"pid": os.getpid(), "scratch": str(self.scratch)}))

    def announce(self, state: dict[str, Any]) -> None:
        """Write demo.json atomically."""
        draft = self.folder / "demo.json.new"
        draft.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        draft.replace(self.folder / "demo.json")

    def state(self) -> dict[str, Any]:
        """Return the contents of demo.json; empty if no demo runs here, or if it takes no commands."""
        return self._read("demo.json") if self.owner() is not None else {}

    def remove(self) -> None:
        """Delete the demo's files, and the folder if it is then empty."""
        if self._lock is None:
            return
        shutil.rmtree(self.scratch, ignore_errors=True)
        for name in _FILES:  # the lock last
            (self.folder / name).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
        with suppress(OSError):
            self.folder.rmdir()

    def _read(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

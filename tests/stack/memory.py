"""Keeps the temporary files of a test run in memory, if there is room: databases are made five times as fast there."""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

__all__ = ["use_folder"]

_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 8 << 30  # bytes that must be free; a run of all tests needs about 2 GiB
_PREFIX: Final = "compactory-tests-"
_AFTER_THEIRS: Final = -200  # multiprocessing removes a folder of its own, in this one, at -100


def use_folder() -> None:
    """Let this process and its children write temporary files into a folder in memory, unless TMPDIR names another.

    It goes when the process ends. Removes the folders of runs that were killed.
    """
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        return
    for folder in _MEMORY.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{folder.name.removeprefix(_PREFIX)}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    folder = _MEMORY / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o711, exist_ok=True)  # the user of Postgres passes through it
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=_AFTER_THEIRS)

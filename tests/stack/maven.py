"""What tests fetch with Maven, once for all test processes."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compactory.errors import Unreachable

__all__ = ["alone", "fetch"]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process at a time fetches into this folder: several may begin at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(what: str, *arguments: str) -> None:
    """Run Maven. Raises Unreachable naming what could not be fetched."""
    done = subprocess.run(["mvn", "-q", "-B", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unreachable("maven", f"could not fetch {what}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

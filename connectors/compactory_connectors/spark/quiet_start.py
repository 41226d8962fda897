"""Spark's JVM started without the lines that it prints each time, whatever its logging is set to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Final

__all__ = ["quiet_start"]

_NOISE: Final = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Setting default log level to ",
    b"To adjust logging level use sc.setLogLevel",
)
"""Of Spark 4.2's launcher and Java 17, on stderr before any logging is set up."""


@contextmanager
def quiet_start() -> Iterator[None]:
    """A process that is started in the block says on stderr what it likes but for these lines, as long as it lives.

    What this process writes meanwhile goes straight to stderr. Not for several threads at once: stderr is one for all.
    """
    stderr, written = os.dup(2), sys.stderr
    reading, writing = os.pipe()
    with os.fdopen(os.dup(stderr), "w", buffering=1) as straight:
        sys.stderr = straight
        os.dup2(writing, 2)
        os.close(writing)
        Thread(target=_forward, args=(reading, stderr), name="spark-stderr", daemon=True).start()
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            sys.stderr = written


def _forward(reading: int, stderr: int) -> None:
    """Ends when the last process that holds the other end does."""
    with os.fdopen(reading, "rb") as lines, os.fdopen(stderr, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                out.write(line)

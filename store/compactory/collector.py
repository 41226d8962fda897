"""Pauses Python's cyclic garbage collector while millions of objects are loaded.

Nothing that is loaded forms cycles, yet each full collection would walk all of it. The pause is shared by every store
of the process: the first one that pauses remembers how the collector was found, the last one restores it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["paused"]

_lock = Lock()  # guards the two below
_pauses = 0
_was_enabled = False


@contextmanager
def paused() -> Iterator[None]:
    """Keep the cyclic collector off inside the block. Thread-safe; blocks may overlap."""
    global _pauses, _was_enabled  # noqa: PLW0603 (the collector is the process's, so is its pause)
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()

"""Says, while a store loads, how much memory its directories will need, and refuses what exceeds a limit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from compactory.errors import ConfigError
from compactory.loading import Loading

__all__ = ["MemoryGuard", "limit_of_container"]

log = logging.getLogger("compactory.store")

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_LEAST = 0.05  # of the offsets, before a forecast says anything
_GIB = 1 << 30


class MemoryGuard:
    """Compares what directories take with ``max_bytes`` and with the container. For the thread that waits for a load.

    ``used`` returns the bytes of now. A forecast takes entries to grow with the offsets that are read, so it is too
    high for a topic with many records of few keys: it warns, and only bytes that are there are refused.
    """

    def __init__(self, used: Callable[[], int], max_bytes: int | None) -> None:
        self._used = used
        self._max_bytes = max_bytes
        self._container = limit_of_container()
        self._warned = False

    def check(self, loading: Loading) -> None:
        """Raise ConfigError where more than ``max_bytes`` is taken; warn once of what will not fit."""
        used = self._used()
        needed = used / loading.share if loading.share >= _LEAST else used
        if self._max_bytes is not None and used > self._max_bytes:
            raise ConfigError(
                f"the directories take {_text(used)} after {loading.share:.0%} of their topics, {_text(needed)} in the"
                f" end; max_bytes allows {_text(self._max_bytes)}: raise it, or keep them on disk (RocksDB)"
            )
        limit = self._container if self._max_bytes is None else min(self._container, self._max_bytes)
        if needed > limit and not self._warned:
            self._warned = True
            what = "max_bytes allows" if limit == self._max_bytes else "the container has"
            log.warning("the directories will need %s, %s %s", _text(needed), what, _text(limit))


def limit_of_container() -> int:
    """Return the bytes of memory that this process may use: the container's limit, or the machine's memory."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        try:
            return min(found, int(path.read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return found


def _text(size: float) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / (1 << 20):.1f} MiB"

"""Reports of a start: its progress, memory that will not fit, and the reasons of a time-out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compactory.clock import clock
from compactory.errors import CompactoryError, ConfigError, StartTimeout
from compactory.kafka.client import Kafka
from compactory.loading import Loading
from compactory.records import Partition

__all__ = ["LoadMonitor", "container_memory", "explain_timeout"]

log = logging.getLogger("compactory.store")

_LOG_INTERVAL = 5.0  # seconds between two log lines while loading
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_FORECAST_SHARE = 0.05  # the part of the offsets that must be read before a forecast makes sense
_GIB = 1 << 30


class LoadMonitor:
    """Reports a load to the user's callback and to the log, and compares its memory with the limits.

    ``used_bytes`` returns what the directories take now. ``max_bytes`` None: only the container's memory is a limit.
    A forecast assumes that entries grow with the offsets that are read. It is too high for a topic with many records
    of few keys: it only warns. Bytes that are already used are refused. For the thread that waits for a load.
    """

    def __init__(
        self, used_bytes: Callable[[], int], max_bytes: int | None, on_progress: Callable[[Loading], None] | None = None
    ) -> None:
        self._used_bytes = used_bytes
        self._max_bytes = max_bytes
        self._container_bytes = container_memory()
        self._has_warned = False
        self._on_progress = on_progress
        self._logged_at = clock()

    def report(self, loading: Loading) -> None:
        """Check the memory; call the callback; log the progress every five seconds. Raises ConfigError."""
        self.check_memory(loading)
        if clock() - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = clock()
            log.info("loading: %s", loading)
        if self._on_progress is not None:
            try:
                self._on_progress(loading)
            except Exception:
                log.exception("on_progress raised; it is not called again")
                self._on_progress = None

    def check_memory(self, loading: Loading) -> None:
        """Warn once of memory that will not fit. Raises ConfigError if more than ``max_bytes`` is used."""
        used = self._used_bytes()
        needed = used / loading.share if loading.share >= _FORECAST_SHARE else used
        if self._max_bytes is not None and used > self._max_bytes:
            raise ConfigError(
                f"the directories take {_text(used)} after {loading.share:.0%} of their topics, {_text(needed)} in the"
                f" end; max_bytes allows {_text(self._max_bytes)}: raise it, or keep them on disk (RocksDB)"
            )
        limit = self._container_bytes if self._max_bytes is None else min(self._container_bytes, self._max_bytes)
        if needed > limit and not self._has_warned:
            self._has_warned = True
            source = "max_bytes allows" if limit == self._max_bytes else "the container has"
            log.warning("the directories will need %s, %s %s", _text(needed), source, _text(limit))


def container_memory() -> int:
    """Return the bytes of memory that this process may use: the container's limit, or the machine's memory."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        try:
            return min(machine_bytes, int(path.read_text()))
        except (OSError, ValueError):  # there is no such file, or it contains "max"
            continue
    return machine_bytes


def _text(size: float) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / (1 << 20):.1f} MiB"


def explain_timeout(
    error: StartTimeout,
    blocking: Sequence[dict[str, Any]],
    kafka: Kafka,
    last_error: str | None,
    start_timeout: float | None,
) -> StartTimeout:
    """Return the time-out with the reason of each item of ``blocking``; asks Kafka once more, for two seconds at most.

    ``last_error`` is the last one of the client as a whole.
    """
    timeout = min(2.0, max(0.5, (start_timeout or 8.0) / 4))
    items = [(item, Partition(item["topic"], item["partition"])) for item in blocking if "reason" not in item]
    positions = {partition: item["position"] for item, partition in items if item["partition"] is not None}
    open_transactions, other_reason = {}, last_error or "nothing comes from the broker"
    try:
        stable_offsets = kafka.stable_offsets(positions, timeout=timeout)
        open_transactions = {part: offset for part, offset in stable_offsets.items() if offset <= positions[part]}
    except CompactoryError as unreachable:
        other_reason = str(unreachable)
    for item, partition in items:
        if partition in open_transactions:
            item["reason"] = (
                f"an open transaction holds the last stable offset at {open_transactions[partition]}; its producer is "
                f"listed by: {kafka.list_producers_command(partition)}"
            )
        else:
            item["reason"] = other_reason if partition in positions else "the topic does not exist"
    return StartTimeout(f"{error}: {'; '.join(map(_line, blocking))}", list(blocking))


def _line(item: Mapping[str, Any]) -> str:
    if "directory" in item:
        return "directory {directory}: {reason}".format(**item)
    return "{topic} partition {partition} is at {position} of {target}: {reason}".format(**item)

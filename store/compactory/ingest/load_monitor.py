"""Reports of a start: its progress, and the reasons of a time-out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactory.clock import clock
from compactory.errors import CompactoryError, StartTimeout
from compactory.kafka.client import Kafka
from compactory.loading import Loading
from compactory.records import Partition

__all__ = ["LoadMonitor", "explain_timeout"]

log = logging.getLogger("compactory.store")

_LOG_INTERVAL = 5.0  # seconds between two log lines while loading


class LoadMonitor:
    """Reports the progress of a load to the user's callback and to the log. For the thread that waits for the load."""

    def __init__(self, on_progress: Callable[[Loading], None] | None = None) -> None:
        self._on_progress = on_progress
        self._logged_at = clock()

    def report(self, loading: Loading) -> None:
        """Call the callback; log the progress every five seconds."""
        if clock() - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = clock()
            log.info("loading: %s", loading)
        if self._on_progress is not None:
            try:
                self._on_progress(loading)
            except Exception:
                log.exception("on_progress raised; it is not called again")
                self._on_progress = None


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

"""Why a store did not become ready in time: each partition that blocks it, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compactory.errors import CompactoryError, StartTimeout
from compactory.kafka.client import Kafka
from compactory.records import Partition

__all__ = ["explained"]


def explained(
    error: StartTimeout,
    blocking: Sequence[dict[str, Any]],
    kafka: Kafka,
    last_error: str | None,
    start_timeout: float | None,
) -> StartTimeout:
    """Return the time-out with the reason of each item of ``blocking``; asks Kafka once more, for two seconds at most.

    ``last_error`` is the last one of the client as a whole.
    """
    spare = min(2.0, max(0.5, (start_timeout or 8.0) / 4))  # seconds
    places = [(item, Partition(item["topic"], item["partition"])) for item in blocking if "reason" not in item]
    reached = {place: item["position"] for item, place in places if item["partition"] is not None}
    held, unknown = {}, last_error or "nothing comes from the broker"
    try:
        stable = kafka.stable_offsets(reached, timeout=spare)
        held = {part: limit for part, limit in stable.items() if limit <= reached[part]}
    except CompactoryError as unreachable:
        unknown = str(unreachable)
    for item, place in places:
        if place in held:
            item["reason"] = (
                f"an open transaction holds the last stable offset at {held[place]}; its producer is listed by:"
                f" {kafka.list_producers_command(place)}"
            )
        else:
            item["reason"] = unknown if place in reached else "the topic does not exist"
    return StartTimeout(f"{error}: {'; '.join(map(_line, blocking))}", list(blocking))


def _line(item: Mapping[str, Any]) -> str:
    if "directory" in item:
        return "directory {directory}: {reason}".format(**item)
    return "{topic} partition {partition} is at {position} of {target}: {reason}".format(**item)

"""Heartbeats of sources in a directory: how long a commit in Postgres takes until it is seen here.

A source with ``compactory.heartbeat.interval.ms`` renews a row in its database and publishes it to HEARTBEATS_TOPIC, a
JSON object under the connector's name. Pure, but for the view that is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

import orjson

from compactory.errors import CompactoryError

if TYPE_CHECKING:
    from compactory.store import GlobalStore

__all__ = ["HEARTBEATS_TOPIC", "heartbeat_ages"]

HEARTBEATS_TOPIC = "compactory-heartbeats"

_MOST = 200  # connectors that are told apart


def heartbeat_ages(store: GlobalStore, now: float) -> dict[str, float]:
    """Seconds since the newest visible heartbeat of each connector was committed, by this machine's clock.

    Nothing where the store has no directory of heartbeats, or does not answer yet. ``now``: in seconds since 1970.
    """
    name = next((each.name for each in store.directories if each.topic == HEARTBEATS_TOPIC), None)
    if name is None:
        return {}
    try:
        found = [(key, store[name].raw(key)) for key in islice(store[name], _MOST)]
    except (CompactoryError, KeyError):
        return {}
    return {key: max(0.0, now - at) for key, value in found if (at := _committed_at(value)) is not None}


def _committed_at(value: bytes) -> float | None:
    """When a heartbeat was committed, in seconds since 1970; None for something else."""
    try:
        document = orjson.loads(value)
    except ValueError:
        return None
    at = document.get("committed_at") if isinstance(document, Mapping) else None
    return at / 1000 if isinstance(at, int | float) else None

"""Outages at will: stops and starts the demo's servers while everything else goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from compactory.errors import ConfigError

from .stage import Stage

__all__ = ["Outage"]


class Outage:
    """Who is out. Postgres is ended in order and started again on its data.

    The broker's memory is all that it has: ended, it would come back without topics. So it is made to hang, which
    is what clients see of a broker that is cut off.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._paused = False

    def handle(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do ``{"action": "stop"|"start", "server": …}`` and say what came of it."""
        began = time.perf_counter()
        action, server = asked.get("action"), asked.get("server")
        doings: dict[tuple[Any, Any], Callable[[], str]] = {
            ("stop", "postgres"): self._stop_postgres,
            ("start", "postgres"): self._start_postgres,
            ("stop", "kafka"): self._pause_kafka,
            ("start", "kafka"): self._resume_kafka,
        }
        if (do := doings.get((action, server))) is None:
            raise ConfigError(f"the demo can't {action} {server}")
        told = do()
        return {"action": action, "server": server, "told": told, "seconds": round(time.perf_counter() - began, 4)}

    def _stop_postgres(self) -> str:
        if not self._stage.postgres.running:
            return "Postgres is down already"
        self._stage.postgres.stop()
        return "Postgres is down; lookups go on"

    def _start_postgres(self) -> str:
        if self._stage.postgres.running:
            return "Postgres runs already"
        self._stage.postgres.start()
        return "Postgres is back; the source comes back by itself"

    def _pause_kafka(self) -> str:
        if self._paused:
            return "the broker hangs already"
        self._stage.broker.pause()
        self._paused = True
        return (
            "the broker hangs (SIGSTOP): clients see an outage, lookups go on;"
            " it is not ended, for its topics are in memory only"
        )

    def _resume_kafka(self) -> str:
        if not self._paused:
            return "the broker runs already"
        self._stage.broker.resume()
        self._paused = False
        return "the broker goes on, with all its topics"

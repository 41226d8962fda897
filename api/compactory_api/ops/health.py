"""Answers of probes and of ``/v1/status`` for a set of workers. Used by the HTTP API and the workers' listener."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from compactory.worker import Worker

__all__ = ["Health"]


class Health:
    """The state of the workers of a process. Thread-safe."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self.stopping = False  # set once; readiness is off from then on
        self._start = time.monotonic()

    def live(self) -> bool:
        """Return True if every worker can still do its work."""
        return all(worker.live() for worker in self.workers)

    def ready(self) -> bool:
        """Return True if every worker does its work and no stop was requested."""
        return not self.stopping and all(worker.ready() for worker in self.workers)

    def liveness(self) -> tuple[int, dict[str, Any]]:
        """Return status and document of ``/livez``."""
        dead = [worker.name for worker in self.workers if not worker.live()]
        return (503, {"live": False, "dead": dead}) if dead else (200, {"live": True})

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and document of ``/readyz``."""
        if self.ready():
            return 200, {"ready": True, "blocking": []}
        blocking = [item for worker in self.workers if not worker.ready() for item in worker.blocking()]
        return 503, {"ready": False, "blocking": blocking, "stopping": self.stopping}

    def status(self) -> dict[str, Any]:
        """Return the document of ``/v1/status``."""
        return {
            "version": version("compactory"),
            "live": self.live(),
            "ready": self.ready(),
            "uptime_seconds": round(time.monotonic() - self._start, 3),
            "workers": [
                {"name": worker.name, "live": worker.live(), "ready": worker.ready(), **worker.status()}
                for worker in self.workers
            ],
        }

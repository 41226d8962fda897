"""A member of a consumer group as probes see it, whatever it does with its records. Times are in seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactory.records import Partition

from .background_consumer import Background

__all__ = ["MemberBoard", "MemberWorker"]


@dataclass(slots=True)
class MemberBoard:
    """Figures of one member. Its thread writes them; any may read, as values are replaced whole."""

    lag: Mapping[Partition, int] = field(default_factory=dict)
    error: str | None = None
    """The system that is away, or the reason for the end."""
    located: bool = False
    """Whether it was ever told where its partitions go on."""
    polled_at: float = field(default_factory=time.monotonic)


class MemberWorker:
    """The probes of `compactory.worker.Worker`; a subclass adds status and metrics. Thread-safe."""

    def __init__(self, kind: str, name: str, member: Background[Any], polling_ttl: float) -> None:
        self._kind, self._name = kind, name
        self._member = member
        self._ttl = polling_ttl
        self.name = f"{kind} {name}"

    def live(self) -> bool:
        """Whether it polls Kafka in time; one that waits for a server is alive."""
        return self._member.alive and time.monotonic() - self._member.board.polled_at < self._ttl

    def ready(self) -> bool:
        """Whether it has had partitions, and what they need, at some time since the start."""
        return bool(self._member.board.located)

    def blocking(self) -> list[dict[str, Any]]:
        """Return why nothing could be done yet."""
        return [] if self.ready() else [{self._kind: self._name, "detail": self._member.board.error}]

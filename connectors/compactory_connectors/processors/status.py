"""The figures of a processor, as status, metrics and probes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from compactory.records import Partition
from compactory_connectors import figures
from compactory_connectors.figures import Figure
from compactory_connectors.kafka.group_worker import MemberWorker

__all__ = ["Board", "ProcessWorker"]


@dataclass(kw_only=True, eq=False)
class Board(figures.Board):
    """Figures of a runner. Its thread writes them; any thread may read."""

    kind = "process"
    events: Annotated[int, Figure("events_total", "Events that are finished")] = 0
    retries: Annotated[int, Figure("retries_total", "Attempts that failed and are repeated")] = 0
    failed: Annotated[int, Figure("failed_total", "Events set aside by this process")] = 0
    waiting: Annotated[int, Figure("waiting", "Events that were read and are not finished")] = 0
    set_aside: Annotated[int, Figure("set_aside", "Events of its partitions that are set aside")] = 0
    lag: Annotated[
        Mapping[Partition, int], Figure("lag", "Events that were not read yet", lambda lag, _: sum(lag.values()))
    ] = field(default_factory=dict)
    polled_at: float = field(default_factory=time.monotonic)

    def picture(self) -> dict[str, Any]:
        picture = super().picture()
        del picture["polled_at"]
        lag = sorted(picture.pop("lag").items())
        return picture | {"partitions": [{**part._asdict(), "lag": number} for part, number in lag]}


class ProcessWorker(MemberWorker):
    """Implements `compactory.worker.Worker`. Thread-safe. It is live also while a function never returns."""

    def __init__(self, runner: Any, *, polling_ttl: float = 300.0) -> None:
        super().__init__(runner, runner.processor.name, polling_ttl)

"""Figures, probes, status and metrics of a processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compactory.worker import Metric
from compactory_connectors.kafka.group_worker import MemberBoard, MemberWorker
from compactory_connectors.postgres.pausing import paused_metric

__all__ = ["Board", "ProcessWorker"]

_COUNTERS = {
    "events": "Events that are finished",
    "retries": "Attempts that failed and are repeated",
    "failed": "Events set aside by this process",
}


@dataclass(slots=True)
class Board(MemberBoard):
    """Figures of a runner. Its thread writes them; any thread may read."""

    waiting: int = 0
    set_aside: int = 0
    paused: Sequence[Mapping[str, str]] = ()
    counters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_COUNTERS, 0)))


class ProcessWorker(MemberWorker):
    """Implements `compactory.worker.Worker`. Thread-safe. It is live also while a function never returns."""

    def __init__(self, runner: Any, *, polling_ttl: float = 300.0) -> None:
        super().__init__("process", runner.processor.name, runner, polling_ttl)
        self._board: Board = runner.board

    def status(self) -> dict[str, Any]:
        """Return its figures."""
        board = self._board
        lag = [{**part._asdict(), "lag": lag} for part, lag in sorted(board.lag.items())]
        figures = {"waiting": board.waiting, "set_aside": board.set_aside, **board.counters}
        return {"partitions": lag, **figures, "paused": list(board.paused), "detail": board.error}

    def metrics(self) -> Iterable[Metric]:
        """Return its figures."""
        name, board = (self._name,), self._board
        for counter, text in _COUNTERS.items():
            yield Metric(name=f"compactory_process_{counter}_total", kind="counter", help=text, labels=("process",),
                         samples={name: board.counters[counter]})  # fmt: skip
        for gauge, text, figure in (
            ("waiting", "Events that were read and are not finished", board.waiting),
            ("set_aside", "Events of its partitions that are set aside", board.set_aside),
            ("lag", "Events that were not read yet", sum(board.lag.values())),
        ):
            yield Metric(name=f"compactory_process_{gauge}", kind="gauge", help=text, labels=("process",),
                         samples={name: figure})  # fmt: skip
        yield paused_metric(board.paused)

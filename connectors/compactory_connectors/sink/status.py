"""The figures of a sink, as status, metrics and probes. Times are in seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from compactory.records import Partition
from compactory_connectors import figures
from compactory_connectors.figures import Figure
from compactory_connectors.kafka.group_worker import MemberWorker

__all__ = ["Board", "SinkWorker"]

_PARTITION: Final = ("topic", "partition")


def _counter(name: str, text: str) -> Figure:
    """Return the metric of counts by partition, with 0 for the other partitions."""
    return Figure(name, text, _of_partitions, _PARTITION)


def _of_partitions(counts: Mapping[Partition, float], board: Board) -> Mapping[Partition, float]:
    return {**dict.fromkeys(board.positions, 0), **counts}


_Counts: TypeAlias = Counter[Partition]


@dataclass(kw_only=True, eq=False)
class Board(figures.Board):
    """Figures of one sink in one process. The sink's thread writes them; any thread may read."""

    kind = "sink"
    lag: Annotated[Mapping[Partition, int], Figure("lag", "Records that are not applied yet", labels=_PARTITION)] = (
        field(default_factory=dict)
    )
    positions: Mapping[Partition, int | None] = field(default_factory=dict)
    set_aside: Annotated[
        Mapping[Partition, int], Figure("set_aside", "Records that are set aside", labels=_PARTITION)
    ] = field(default_factory=dict)
    rows: Annotated[_Counts, _counter("rows_total", "Records applied")] = field(default_factory=Counter)
    batches: Annotated[_Counts, _counter("batches_total", "Transactions committed")] = field(default_factory=Counter)
    batch_seconds: Annotated[_Counts, _counter("batch_seconds_total", "Seconds spent in transactions")] = field(
        default_factory=Counter
    )
    seeks: Annotated[_Counts, _counter("seeks_total", "Times that the database's offset was not the expected one")] = (
        field(default_factory=Counter)
    )
    rollbacks: Annotated[
        _Counts, _counter("rollbacks_total", "Transactions rolled back for an error that will be tried again")
    ] = field(default_factory=Counter)
    failed: Annotated[_Counts, _counter("failed_total", "Records set aside")] = field(default_factory=Counter)
    rebalances: int = 0
    polled_at: float = field(default_factory=time.monotonic)
    _consuming_since: float | None = None

    @contextmanager
    def consuming(self, partition: Partition) -> Iterator[None]:
        """Record a transaction, for the probes."""
        self._consuming_since = begun_at = time.monotonic()
        try:
            yield
        finally:
            self.polled_at, self._consuming_since = time.monotonic(), None
            self.count(partition, batch_seconds=self.polled_at - begun_at)

    def count(self, partition: Partition, **counts: float) -> None:
        """Count seeks, rollbacks, or rows, batches and failed records of a committed transaction."""
        with self._lock:
            for name, number in counts.items():
                getattr(self, name)[partition] += number

    def live(self, polling_ttl: float, consuming_ttl: float) -> bool:
        """Return True if batches end and Kafka is polled in time."""
        time_, since = time.monotonic(), self._consuming_since
        return time_ - self.polled_at < polling_ttl if since is None else time_ - since < consuming_ttl

    def picture(self) -> dict[str, Any]:
        picture = super().picture()
        lag, positions, set_aside = (picture.pop(name) for name in ("lag", "positions", "set_aside"))
        del picture["polled_at"]
        partitions = [
            {**part._asdict(), "offset": position, "lag": lag.get(part), "set_aside": set_aside.get(part, 0)}
            for part, position in sorted(positions.items())
        ]
        totals = {name: sum(value.values()) for name, value in picture.items() if isinstance(value, Counter)}
        return picture | totals | {"partitions": partitions}


class SinkWorker(MemberWorker):
    """Implements `compactory.worker.Worker`, for a `TransactionalSink`. Thread-safe."""

    def __init__(self, sink: Any, *, polling_ttl: float = 300.0, consuming_ttl: float = 60.0) -> None:
        super().__init__(sink, sink.name, polling_ttl)
        self._consuming_ttl = consuming_ttl

    def live(self) -> bool:
        """Return True if the sink polls Kafka and ends batches in time, or waits for a server."""
        return bool(self._part.alive and self._board.live(self._ttl, self._consuming_ttl))

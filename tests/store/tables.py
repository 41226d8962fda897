"""Tables and views without Kafka: what is pure is tested pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compactory import Directory, View
from compactory.errors import NotReady
from compactory.read.served import Served
from compactory.records import Partition
from compactory.storage.backend import TopicStorage
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.memory_backend import Memory
from compactory.table.batch import RecordRun
from compactory.table.table import Table


class Log:
    """A directory fed record by record; ``put`` and ``delete`` take text or bytes. Each is committed by itself."""

    def __init__(
        self,
        directory: Directory[Any],
        *,
        validate: bool = True,
        strict: bool = False,
        storage: TopicStorage | None = None,
    ) -> None:
        self.storage = Memory().open("t") if storage is None else storage
        self.table = Table(directory, self.storage.directory_storage(directory.name), validate=validate, strict=strict)
        served = Served(lambda: NotReady("not ready"), lambda: 0.0, lambda _: self.table)
        served.swap(self.table)
        served.open = True
        self.view: View[Any] = View(directory, served)
        self._next = 0

    def put(self, key: str | bytes | None, value: str | bytes | None, *, at: int = 1, partition: int = 0) -> int:
        """Apply one record with timestamp ``at``; return its offset."""
        offset, self._next = self._next, self._next + 1
        place = Partition(self.table.directory.topic, partition)
        self.table.apply(RecordRun(place, [_bytes(key)], [_bytes(value)], [offset], [at]))
        self.storage.commit(read_to(self._next))
        return offset

    def load(
        self, rows: Sequence[tuple[bytes, bytes | None, int]], *, partition: int = 0, loading: bool = True
    ) -> list[int]:
        """Apply a run of (key, value, timestamp) as while loading, or later; return the offsets."""
        offsets = list(range(self._next, self._next + len(rows)))
        self._next += len(rows)
        keys, values, stamps = ([row[column] for row in rows] for column in range(3))
        place = Partition(self.table.directory.topic, partition)
        self.table.apply(RecordRun(place, keys, values, offsets, stamps), loading=loading)  # type: ignore[arg-type]
        self.storage.commit(read_to(self._next))
        return offsets

    def delete(self, key: str, *, at: int = 1, partition: int = 0) -> int:
        """Apply a tombstone."""
        return self.put(key, None, at=at, partition=partition)


def read_to(offset: int, *, complete: bool = True) -> Checkpoint:
    """A checkpoint: partition 0 was read up to the offset."""
    return Checkpoint(topic_id="t", cluster_id="c", definition="d", positions={0: offset}, complete=complete)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text

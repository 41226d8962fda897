"""Applies a partition in parallel: each part of the keys in a transaction and on a connection of its own.

The transaction of a part stores the part's offset. The offset of the partition moves once every part has reached the
end of the batch. So after a crash any process continues at the offset of each part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import psycopg

from .applying import Applying, Outcome
from .offsets import Offsets
from .record import Batch, Failed, SinkRecord, part_of

__all__ = ["Parallel"]


class Parallel:
    """Applies batches in threads. ``parts`` have a connection each; ``connection`` moves the offsets of partitions.

    Owned by one thread, which waits for the threads of the parts. Raises as `Applying` does.
    """

    def __init__(self, connection: psycopg.Connection[Any], sink: str, parts: Sequence[Applying]) -> None:
        self._connection = connection
        self._offsets = Offsets(connection, sink)
        self._parts = parts
        self._threads = ThreadPoolExecutor(len(parts), thread_name_prefix="compactory-sink-part")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def apply(self, batch: Batch) -> Outcome:
        """Apply a batch and move the offset to its end. After an error some parts may be applied."""
        work: dict[int, list[SinkRecord]] = defaultdict(list)
        with self._connection.transaction():
            self._offsets.lock(batch.partition, batch.start)
            ends, count = self._offsets.parts(batch.partition)
            count = count or len(self._parts)  # a batch keeps the number of parts with which it was begun
            for record in batch.records:
                part = part_of(record, count)
                if record.offset >= ends.get(part, batch.start):
                    work[part].append(record)
            self._offsets.begin_parts(batch, [*work], count)
        futures = [
            self._threads.submit(self._work, batch._replace(records=records), part, count, ends.get(part, batch.start))
            for part, records in work.items()
        ]
        wait(futures)
        failed: list[Failed] = [item for future in futures for item in future.result()]
        with self._connection.transaction():
            self._offsets.lock(batch.partition, batch.start)
            self._offsets.move(batch, has_parts=True)
        return failed

    def _work(self, batch: Batch, part: int, parts: int, expected: int) -> Outcome:
        applying = self._parts[part % len(self._parts)]  # an earlier run may have had more parts

        def begin() -> None:
            applying.offsets.lock(batch.partition, batch.start, shared=True)
            applying.offsets.move_part(batch, part, parts, expected)

        with applying.lock:
            return applying.apply(batch, begin)

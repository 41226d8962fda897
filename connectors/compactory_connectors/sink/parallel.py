"""Work on one partition in parallel: parts of a batch's keys, each in a transaction and on a connection of its own.

A part's transaction notes in the database how far the part is done; the partition's offset moves once every part has
reached the end of the batch. So a batch that is cut off goes on where each part was, in whichever process.
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
    """``parts`` are appliers with a connection each, ``connection`` is the one that moves offsets.

    Owned by one thread, which waits for the others. Raises as `Applying` does.
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
        """Apply a batch and move the offset to its end, or as many of its parts as possible."""
        work: dict[int, list[SinkRecord]] = defaultdict(list)
        with self._connection.transaction():
            self._offsets.lock(batch.partition, batch.start)
            done, count = self._offsets.parts(batch.partition)
            count = count or len(self._parts)  # as many as when they were begun
            for record in batch.records:
                part = part_of(record, count)
                if record.offset >= done.get(part, batch.start):
                    work[part].append(record)
            self._offsets.begin_parts(batch, [*work], count)
        futures = [
            self._threads.submit(self._work, batch._replace(records=records), part, count, done.get(part, batch.start))
            for part, records in work.items()
        ]
        wait(futures)
        failed: list[Failed] = [item for future in futures for item in future.result()]
        with self._connection.transaction():
            self._offsets.lock(batch.partition, batch.start)
            self._offsets.move(batch, parted=True)
        return failed

    def _work(self, batch: Batch, part: int, parts: int, expected: int) -> Outcome:
        applying = self._parts[part % len(self._parts)]  # parts of an earlier run may be more

        def begin() -> None:
            applying.offsets.lock(batch.partition, batch.start, shared=True)
            applying.offsets.part_done(batch, part, parts, expected)

        with applying.alone:
            return applying.apply(batch, begin)

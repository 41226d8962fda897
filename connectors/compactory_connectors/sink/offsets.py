"""Offsets of a sink's partitions in Postgres: rows made beforehand, locked, and moved from an expected offset.

The database says where a partition goes on, and `Locator` checks it against the log. The connection for it is checked,
with time-outs that end what takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import psycopg
from psycopg.rows import class_row

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Located
from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .record import Batch, SinkStopped

__all__ = ["Locator", "Moved", "Offsets", "PartitionOffset", "Start", "open_sink", "partition_offsets", "set_offset"]

_SINK = Part(name="sink", needs="a sink needs", installed="the sink's tables are", may="keep a sink's offsets")
_LOCK_SHARE = 0.5  # of the limit, for a lock: what is waited for is another process's transaction


def open_sink(conninfo: Mapping[str, Any], sink: str, timeout: float = 60.0) -> WatchedConnection:
    """A connection in autocommit to a database with the sink's tables; see `open_part`.

    ``timeout`` is the seconds that a statement, or a pause between two of a transaction, may take.
    """
    limits = {"limit": f"{timeout * 1000:.0f}ms", "lock": f"{timeout * 1000 * _LOCK_SHARE:.0f}ms"}
    connection, _ = open_part(conninfo, _SINK, sink, limits)
    connection.prepare_threshold = 2
    return connection


class Moved(Exception):
    """The database's offset is not the expected one: another process was here, or an operator, or a restore."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"{partition.topic}-{partition.partition}")
        self.partition = partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """One partition of a sink. ``offset`` is of the next record, None: never used. ``failed``: records set aside."""

    sink: str
    topic: str
    partition: int
    topic_id: str | None
    offset: int | None
    updated_at: datetime
    failed: int
    waiting: int

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"updated_at": self.updated_at.isoformat()}


class _Known(NamedTuple):
    """A row: the next offset (None: never used), the topic's id, and what `Located` says of the last record."""

    offset: int | None
    topic_id: str | None
    record_end: int | None
    leader_epoch: int | None

    def located(self, start: int) -> Located | None:
        """Where the partition goes on, if it was used; ``start`` is where its log begins."""
        if self.offset is None:
            return None
        if self.record_end is None or self.leader_epoch is None or self.record_end < start:
            return Located(self.offset, self.offset)
        return Located(self.offset, self.record_end, self.leader_epoch)


class Offsets:
    """The rows of one sink. Owned by the thread that owns the connection; raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[Any], sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def known(self, partitions: Sequence[Partition]) -> dict[Partition, _Known]:
        """The rows of partitions, once no transaction is at work on them. Makes those that are missing."""
        topics, numbers = [part.topic for part in partitions], [part.partition for part in partitions]
        given = {"sink": self._sink, "topics": topics, "partitions": numbers}
        self._connection.execute(query("sink/insert_partitions"), given)
        rows = self._connection.execute(query("sink/read_offsets"), given).fetchall()
        return {Partition(topic, number): _Known(*facts) for topic, number, *facts in rows}

    def begin(self, partition: Partition, offset: int, topic_id: str | None) -> None:
        """Give a partition that was never used its first offset, unless another process did."""
        self._run("sink/set_first", partition, offset=offset, topic_id=topic_id)

    def lock(self, partition: Partition, expected: int, *, shared: bool = False) -> tuple[bool, bool]:
        """Lock the row for this transaction; ``shared`` is against moving only. Raises Moved.

        Says whether records of it are set aside, and whether parts of the keys are done beyond the offset.
        """
        row = self._run("sink/lock_shared" if shared else "sink/lock", partition).fetchone()
        if row is None or row[0] != expected:
            raise Moved(partition)
        return bool(row[1]), bool(row[2])

    def move(self, batch: Batch, *, parted: bool = False) -> None:
        """Move the offset from the batch's start to its end in this transaction.

        Raises Moved where it is not at the start, or unless ``parted``, parts are done; they are forgotten.
        """
        given = {"expected": batch.start, "offset": batch.end, "parted": parted}
        last = {"record_end": batch.end if batch.records else None, "leader_epoch": batch.leader_epoch}
        if not self._run("sink/advance", batch.partition, **given, **last).rowcount:
            raise Moved(batch.partition)
        if parted:
            self._run("sink/delete_parts", batch.partition, until=batch.end)

    def parts(self, partition: Partition) -> tuple[dict[int, int], int]:
        """How far parts of the keys are done beyond the offset, and how many parts there are; 0: none was begun."""
        rows = self._run("sink/parts", partition).fetchall()
        return {part: until for part, _, until in rows}, rows[0][1] if rows else 0

    def begin_parts(self, batch: Batch, numbers: Sequence[int], parts: int) -> None:
        """Make rows of parts that are missing, under the lock: processes then agree how many parts there are."""
        self._run("sink/begin_parts", batch.partition, numbers=list(numbers), parts=parts, start=batch.start)

    def part_done(self, batch: Batch, part: int, parts: int, expected: int) -> None:
        """Note that a part is done up to the batch's end. Raises Moved where another process has done it."""
        given = {"part": part, "parts": parts, "expected": expected, "until": batch.end}
        if not self._run("sink/advance_part", batch.partition, **given).rowcount:
            raise Moved(batch.partition)

    def _run(self, statement: str, partition: Partition, **given: Any) -> psycopg.Cursor[Any]:
        place = {"sink": self._sink, "topic": partition.topic, "partition": partition.partition}
        return self._connection.execute(query(statement), place | given)


Start: TypeAlias = Literal["earliest", "latest"]


@dataclass(slots=True)
class Locator:
    """Finds the next offsets of partitions. Owned by one thread.

    Raises SinkStopped where the log does not have the records that come next, psycopg.Error, Unreachable.
    """

    kafka: Kafka
    offsets: Offsets
    sink: str
    start: Start
    committed: Callable[[Sequence[Partition]], Mapping[Partition, int]]
    """Counts for partitions that no sink of this name ever used."""
    _topic_ids: dict[str, str | None] = field(default_factory=dict)

    def locate(self, partitions: Sequence[Partition]) -> dict[Partition, Located]:
        """Where each goes on that is there."""
        found = self.kafka.topics({part.topic for part in partitions})
        ids = {name: topic.topic_id for name, topic in found.items()}
        starts = self.kafka.log_starts(partitions)
        ends = self.kafka.high_watermarks(partitions)
        partitions = [part for part in partitions if part in starts and part in ends]
        known = self.offsets.known(partitions)
        new = [part for part, row in known.items() if row.offset is None]
        if new:
            first = starts if self.start == "earliest" else ends
            chosen = {**{part: first[part] for part in new}, **self.committed(new)}
            for part in new:
                self.offsets.begin(part, chosen[part], ids.get(part.topic))
            known |= self.offsets.known(new)
        self._topic_ids.update(ids)
        problems = [
            problem
            for part, row in known.items()
            for problem in self._problems(part, row, ids.get(part.topic), starts[part], ends[part])
        ]
        if problems:
            raise SinkStopped("\n".join(problems))
        return {part: at for part, row in known.items() if (at := row.located(starts[part])) is not None}

    def check_topics(self, topics: Sequence[str]) -> bool:
        """Whether these topics are still those that were located."""
        found = self.kafka.topics(topics)
        return all(found[name].topic_id == self._topic_ids.get(name) for name in topics if name in found)

    def _problems(self, part: Partition, known: _Known, now: str | None, start: int, end: int) -> Iterator[str]:
        offset, topic_id = known.offset or 0, known.topic_id
        where = f"sink {self.sink!r}: partition {part.partition} of topic {part.topic!r}"
        remedy = f"compactory sink offsets set {self.sink} {part.topic} {part.partition}"
        if None not in {topic_id, now} and topic_id != now:
            yield (
                f"{where}: the topic was deleted and created again ({topic_id} is {now} now), so offset {offset} means"
                f" another record; to apply what it has now: {remedy} earliest"
            )
        elif offset < start:
            yield (
                f"{where}: records {offset} to {start - 1} were deleted before they were applied; raise retention.ms,"
                f" fill in what is lost from elsewhere, then go on: {remedy} earliest"
            )
        elif offset > end:
            yield (
                f"{where}: the log ends at {end}, before the next offset {offset}: it was cut off; check what is"
                f" applied twice or lost, then go on: {remedy} {end}"
            )


def partition_offsets(connection: psycopg.Connection[Any], sink: str | None = None) -> list[PartitionOffset]:
    """Every partition of a sink, or of all sinks. Raises psycopg.Error, and ConfigError for a sink without any."""
    cursor = connection.cursor(row_factory=class_row(PartitionOffset))
    found = cursor.execute(query("sink/status"), {"sink": sink}).fetchall()
    if sink is not None and not found:
        others = sorted({item.sink for item in partition_offsets(connection)})
        raise ConfigError(
            f"no sink {sink!r} has written to this database; those that have: {', '.join(others) or 'none'}"
        )
    return found


def set_offset(
    connection: psycopg.Connection[Any], sink: str, partition: Partition, offset: int, topic_id: str | None
) -> bool:
    """Have a sink go on at this offset; whether it has this partition. Raises psycopg.Error.

    A transaction under way ends first; a process at work finds its offset moved, and seeks.
    """
    given = {"sink": sink, "topic": partition.topic, "partition": partition.partition, "offset": offset}
    with connection.transaction():
        moved = connection.execute(query("sink/set"), given | {"topic_id": topic_id}).rowcount > 0
        connection.execute(query("sink/forget_parts"), given)
    return moved

"""Operators' functions about sinks: list, retry and drop records that were set aside; set offsets; pause and resume.

Each transaction writes a line of the operator log; ``by`` is who acts, by default the user of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.postgres.operator_log import log_act
from compactory_connectors.postgres.pausing import PauseResult, set_paused
from compactory_sql import query

from .statements import Choice, partition_offsets, selection

__all__ = ["FailedRecord", "drop", "failed_records", "pause", "resume", "retry", "set_position"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecord:
    """A failed record, or one that waits for a failed record of its key (``reason`` None).

    ``bytes`` is the size of the value; None: a tombstone. ``again``: it will be retried.
    """

    sink: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    bytes: int | None
    failed_at: datetime
    reason: str | None
    again: bool


def failed_records(connection: psycopg.Connection[Any], *chosen: Choice, limit: int = 1000) -> list[FailedRecord]:
    """Return the first ``limit`` of the chosen failed records. Raises psycopg.Error."""
    cursor = connection.cursor(row_factory=class_row(FailedRecord))
    return cursor.execute(query("sink/failed"), selection(*chosen) | {"limit": limit}).fetchall()


def retry(connection: psycopg.Connection[Any], *chosen: Choice, by: str | None = None) -> int:
    """Retry failed records, and then the records that wait for them. Return their number. Raises psycopg.Error."""
    return _change(connection, chosen, "retry", by, "sink/request_retry")


def drop(connection: psycopg.Connection[Any], *chosen: Choice, by: str | None = None) -> int:
    """Delete failed records, and apply the records that wait for them. Return their number. Raises psycopg.Error."""
    return _change(connection, chosen, "drop", by, "sink/drop", "sink/retry_waiting")


def set_position(
    connection: psycopg.Connection[Any],
    kafka: Kafka,
    sink: str,
    partition: Partition,
    position: str,
    *,
    by: str | None = None,
) -> int:
    """Set the next offset of a partition to a number, ``earliest`` or ``latest``. Return it.

    Waits for a running transaction of the sink. A running sink notices the new offset and seeks. Raises ConfigError if
    the log does not have the offset, or the sink not the partition; Unreachable, psycopg.Error.
    """
    name = f"partition {partition.partition} of topic {partition.topic!r}"
    topic = kafka.topics([partition.topic]).get(partition.topic)
    if topic is None or partition.partition not in topic.partitions:
        raise ConfigError(f"there is no {name}")
    start, end = kafka.log_starts([partition])[partition], kafka.high_watermarks([partition])[partition]
    named = {"earliest": start, "latest": end}
    if position not in named and not (position.isascii() and position.isdigit()):
        raise ConfigError(f"the offset must be a number, earliest or latest, not {position!r}")
    offset = named[position] if position in named else int(position)
    if not start <= offset <= end:
        raise ConfigError(f"the log has offsets {start} to {end}, and not {offset}")
    target = {"sink": sink, "topic": partition.topic, "partition": partition.partition, "offset": offset}
    with connection.transaction():
        count = connection.execute(query("sink/set"), target | {"topic_id": topic.topic_id}).rowcount
        log_act(connection, "sink", "set-offset", target, count, by)
    if not count:
        raise ConfigError(f"no sink {sink!r} has written {name} to this database")
    return offset


def pause(connection: psycopg.Connection[Any], sink: str, *, by: str | None = None) -> PauseResult:
    """Pause a sink: within a second its processes apply no more records. They keep their partitions.

    Raises ConfigError for a name that no sink has, psycopg.Error.
    """
    partition_offsets(connection, sink)
    return PauseResult(set_paused(connection, "sink", sink, by, is_paused=True))


def resume(connection: psycopg.Connection[Any], sink: str, *, by: str | None = None) -> bool:
    """Resume a sink at its offsets. Return False if it was not paused. Raises as `pause` does."""
    partition_offsets(connection, sink)
    return set_paused(connection, "sink", sink, by, is_paused=False)


def _change(
    connection: psycopg.Connection[Any], chosen: tuple[Choice, ...], action: str, by: str | None, *statements: Any
) -> int:
    """Run statements for each partition with its offset locked. Return the number of rows of the first one."""
    count = 0
    for topic, partition in connection.execute(query("sink/chosen"), selection(*chosen)).fetchall():
        parameters = selection(*chosen) | {"topic": topic, "partition": partition}
        with connection.transaction():
            connection.execute(query("sink/lock"), parameters)
            rows = [connection.execute(query(statement), parameters).rowcount for statement in statements]
            log_act(connection, "sink", action, parameters, rows[0], by)
        count += rows[0]
    return count

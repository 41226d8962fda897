"""Rows of given record keys sent again as they are now: what ``compactory verify --repair`` asks for.

Whoever calls publishes alone, so that nothing it sends can be older than what a poll has sent before: the rows are read
in a snapshot of now, and what commits later is sent later.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

from ..control.removal import Copy
from ..plan.table_plan import Reading, TablePlan
from ..poll.record_batch import Record, pages
from ..postgres.page_size import PAGE_ROWS
from ..postgres.server import Server
from ..publish.partitioner import agrees, partition_of
from ..publish.publisher import Publisher
from .verification.checker import Row
from .verification.table_side import TableSide
from .verification.topic_side import TopicSide

__all__ = ["ResentRows", "refuse_resend", "resend_rows"]

_KeyValue: TypeAlias = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResentRows:
    """What was sent, and how many keys were left alone because their rows can't be converted."""

    records: Sequence[_KeyValue] = ()
    left_alone: int = 0


def refuse_resend(plan: TablePlan) -> None:
    """Raise ConfigError for a table of which a key does not say where its record belongs."""
    if plan.rows.routed or plan.keyless or not plan.rows.key_columns:
        raise ConfigError(
            f"{plan.label}: its records have no key, or transforms make their topics; they are not sent again"
        )


def resend_rows(
    server: Server, kafka: Kafka, plan: TablePlan, publisher: Publisher, keys: Collection[bytes], offset: Record
) -> ResentRows:
    """Send what the rows of these keys are now, tombstones for keys that have none, each page with the offset as it is.

    Copies of the keys in partitions where they don't belong get tombstones. Raises ConfigError, psycopg.Error,
    TableReplaced, and what a publisher raises.
    """
    refuse_resend(plan)
    wanted = set(keys)
    records, doubtful = _records(server, plan, wanted)
    strays = _strays(kafka, plan, {key for key, _ in records})
    for page in pages(records, PAGE_ROWS):
        mine = {key for key, _ in page}
        publisher.publish(plan.topic, page, offset, [copy for copy in strays if copy.key in mine])
    return ResentRows(records=records, left_alone=len(doubtful))


def _records(server: Server, plan: TablePlan, wanted: set[bytes]) -> tuple[list[_KeyValue], set[bytes]]:
    """The records of these keys in a snapshot of now, and keys whose row can't be converted."""
    values: dict[bytes, bytes | None] = {}
    doubtful: set[bytes] = set()
    with TableSide(server, plan).look(None) as look:
        for rows in look.records(plan.topic):
            for key, value, flags, _ in rows:
                if key not in wanted:
                    continue
                if flags & Row.UNREADABLE:
                    doubtful.add(key)
                elif not flags & Row.ABSENT or key not in values:  # an active row wins over a deactivated one
                    values[key] = None if flags & Row.ABSENT else value
    if look.unreadable or plan.reading is Reading.NEW_ROWS:
        doubtful |= wanted - values.keys()  # may be of a row whose key is not known, or of one that is gone and stays
    else:
        values |= dict.fromkeys(wanted - values.keys() - doubtful)
    return [(key, value) for key, value in values.items() if key not in doubtful], doubtful


def _strays(kafka: Kafka, plan: TablePlan, keys: set[bytes]) -> list[Copy]:
    """Living copies of these keys in other partitions than their own, to be buried older than what is sent now."""
    with TopicSide(kafka, plan.topic) as topic:
        count = len(topic.partitions)
        if count < 2 or not keys or not agrees(kafka.properties().get("partitioner")):
            return []
        found: dict[tuple[bytes, int], int | None] = {}
        topic.rewind()
        for messages in topic.read_to(topic.ends()):
            for message in messages:
                key, partition = message.key(), message.partition()
                if isinstance(key, bytes) and partition is not None and key in keys:
                    found[key, partition] = message.timestamp()[1] if message.value() is not None else None
    now = int(time.time() * 1000) - 1
    return [
        Copy(key, partition, min(stamp, now))
        for (key, partition), stamp in found.items()
        if stamp is not None and partition != partition_of(key, count)
    ]

"""Rows of some record keys are sent again as they are now, for ``compactory verify --repair``.

A running source sends them; if none runs, this process does, as the connector's only publisher. So nothing that is sent
is older than what a poll has sent before: the rows are read in a new snapshot, and later commits are sent later.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.kafka.producer_record import Copy, ProducerRecord
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import TopicReader

from ..config.connector import ConnectorConfig
from ..offsets.stored_offsets import read_offsets
from ..offsets.topics import publisher_of
from ..planning.planner import plan_tables
from ..planning.table_plan import TablePlan
from ..polling.reader import pages
from ..polling.removal import Removal, misplaced, too_many
from ..postgres.chunk_reader import PAGE_ROWS
from ..postgres.server import Server, connected
from ..removals.removal_guard import RemovalGuard
from ..removals.sweeper import newest_stamps
from ..verify.checker import Finding, Outcome, Row
from ..verify.table_side import table_snapshot
from .lease import Lease

__all__ = ["MOST_REPAIRS", "ResentRows", "refuse_repair", "refuse_resend", "repair", "resend_rows"]

log = structlog.get_logger("compactory.source")

MOST_REPAIRS = 50_000
"""Keys of one topic that one repair sends again."""

_KeyValue: TypeAlias = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResentRows:
    """Records that were sent, and the number of keys that were left alone because their rows can't be converted."""

    records: Sequence[_KeyValue] = ()
    left_alone: int = 0


def refuse_resend(plan: TablePlan) -> None:
    """Raise ConfigError for a table whose record keys do not determine the topic or the row."""
    if plan.rows.routed or plan.keyless or not plan.rows.key_columns:
        raise ConfigError(
            f"{plan.label}: its records have no key, or transforms make their topics; they are not sent again"
        )


def resend_rows(
    server: Server, kafka: Kafka, plan: TablePlan, guard: RemovalGuard, keys: Collection[bytes], offset: ProducerRecord
) -> ResentRows:
    """Send the present rows of these keys, and tombstones for keys without a row, each page with ``offset``.

    Copies of the keys in other partitions get tombstones: all copies of a key without a row, of other keys those that
    are older than the record that is sent. Raises ConfigError, psycopg.Error, TableReplaced, and a publisher's errors.
    """
    refuse_resend(plan)
    records, doubtful = _records(server, plan, set(keys))
    copies = _copies(kafka, plan, dict(records), guard.partitioner)
    sent: list[_KeyValue] = []
    for page in pages(records, PAGE_ROWS):
        sent += _publish(guard, page, offset, copies)
    return ResentRows(records=sent, left_alone=len(doubtful) + len(records) - len(sent))


def _publish(
    guard: RemovalGuard, page: Sequence[_KeyValue], offset: ProducerRecord, copies: Sequence[Copy]
) -> Sequence[_KeyValue]:
    """Publish a page. Return the records of it that were sent."""
    removals = [Removal(key) for key, value in page if value is None]
    try:
        living = guard.publish(page, offset, removals, [copy for copy in copies if copy.key in dict(page)])
    except RowError:  # the key of a row is not known, so that no key may be removed
        page = [(key, value) for key, value in page if value is not None]
        living = guard.publish(page, offset, (), [copy for copy in copies if copy.key in dict(page)])
    return [(key, value) for key, value in page if value is not None or key not in living]


def _records(server: Server, plan: TablePlan, requested: set[bytes]) -> tuple[list[_KeyValue], set[bytes]]:
    """Return the records of these keys in a new snapshot, and the keys whose row can't be converted."""
    values: dict[bytes, bytes | None] = {}
    doubtful: set[bytes] = set()
    with table_snapshot(server, plan, None) as snapshot:
        for rows in snapshot.records(plan.topic):
            for key, value, flags, _ in rows:
                if key not in requested:
                    continue
                if flags & Row.UNREADABLE:
                    doubtful.add(key)
                elif not flags & Row.ABSENT or key not in values:  # an active row wins over a deactivated one
                    values[key] = None if flags & Row.ABSENT else value
    if snapshot.unreadable or plan.appends:
        doubtful |= requested - values.keys()  # of a row whose key is not known, or of a deleted row that stays
    else:
        values |= dict.fromkeys(requested - values.keys() - doubtful)
    return [(key, value) for key, value in values.items() if key not in doubtful], doubtful


def _copies(kafka: Kafka, plan: TablePlan, records: Mapping[bytes, bytes | None], partitioner: str) -> list[Copy]:
    """Return the living copies of keys in other partitions than those to which these records go."""
    with TopicReader(kafka, plan.topic) as topic:
        count = len(topic.partitions)
        if count < 2 or not records:
            return []
        newest: dict[tuple[bytes, int], int | None] = {}
        for messages in topic.read_to(topic.ends()):
            newest.update(newest_stamps(messages, records.__contains__))
    homes = {key: partition_by(key, count, partitioner) for key in records}
    copies = [
        Copy(key, partition)
        for (key, partition), stamp in newest.items()
        if stamp is not None and records[key] is None and partition != homes[key]
    ]
    sent_at = int(time.time() * 1000)
    newest |= {(key, home): sent_at for key, home in homes.items() if home is not None and records[key] is not None}
    return copies + [*misplaced(newest, homes.get, sent_at)]


def refuse_repair(connector: ConnectorConfig, outcomes: Sequence[Outcome], *, approved: bool) -> None:
    """Raise ConfigError if a key does not tell its table, CompactoryError for a removal that needs an approval."""
    for outcome in outcomes:
        if outcome.different and len(outcome.tables) != 1:
            tables = ", ".join(outcome.tables)
            raise ConfigError(
                f"topic {outcome.topic} has records of {tables}: a key does not tell its table; nothing is sent"
            )
        removed, percent = outcome.findings[Finding.EXTRA], connector.max_removed_percent
        if not approved and too_many(removed, outcome.stored, percent):
            raise CompactoryError(
                f"topic {outcome.topic}: the repair would remove {removed:,} of {outcome.stored:,} keys, which is more"
                f" than compactory.max.removed.percent={percent} allows; if it is meant, add --approve"
            )


def repair(connector: ConnectorConfig, kafka: Kafka, table: str, keys: Collection[bytes]) -> ResentRows:
    """Send the present rows of these keys of ``schema.table`` again.

    Raises LeaseLost if a source has the lease, ConfigError, Unreachable, CompactoryError.
    """
    with closing(Lease(connector, lambda _status: None)) as lease:
        lease.take()
        with connected(connector.connection) as server, closing(publisher_of(connector, kafka, lease)) as publisher:
            return _send(connector, kafka, server, publisher, table, keys)


def _send(
    connector: ConnectorConfig, kafka: Kafka, server: Server, publisher: Publisher, table: str, keys: Collection[bytes]
) -> ResentRows:
    plan = next(plan for plan in plan_tables(server, connector) if plan.qualified == table)
    publisher.open()
    key = plan.offset_key(server.database)
    stored = next((item for item in read_offsets(kafka) if item.key == key), None)
    if stored is None or stored.value is None:
        raise ConfigError(f"{plan.label}: no source has polled it; run one, it sends every row")
    guard = RemovalGuard(server, plan, publisher, partial(_log_stopped, table))
    return resend_rows(server, kafka, plan, guard, keys, (key, stored.value))


def _log_stopped(table: str, stopped: int) -> None:
    log.error("removals of living rows stopped", table=table, keys=stopped)

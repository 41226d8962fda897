"""Repairs a topic where no source runs: as the connector's only publisher, under its lease and transactional id."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial

import structlog

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka

from ..config.connector import ConnectorConfig
from ..control.removal import too_many
from ..leadership.lease import Lease
from ..plan.planning import plan_tables
from ..plan.table_plan import key_of
from ..postgres.server import Server, connected
from ..publish.publisher import Publisher
from ..publish.removal_guard import RemovalGuard
from ..publish.stored_offsets import read_offsets
from .checker import Finding
from .outcome import Outcome
from .repair_keys import ResentRows, resend_rows

__all__ = ["MOST_REPAIRS", "refuse_repair", "repair"]

log = structlog.get_logger("compactory.source")

MOST_REPAIRS = 50_000
"""Keys of one topic that one repair sends again."""


def refuse_repair(connector: ConnectorConfig, outcomes: Sequence[Outcome], *, approved: bool) -> None:
    """Raise ConfigError where a key does not say whose it is, CompactoryError for a removal that needs an approval."""
    for outcome in outcomes:
        if outcome.different and len(outcome.tables) != 1:
            tables = ", ".join(outcome.tables)
            raise ConfigError(
                f"topic {outcome.topic} is that of {tables}: a key does not say whose it is; nothing is sent"
            )
        removed, percent = outcome.findings[Finding.EXTRA], connector.max_removed_percent
        if not approved and too_many(removed, outcome.stored, percent):
            raise CompactoryError(
                f"topic {outcome.topic}: the repair would remove {removed:,} of {outcome.stored:,} keys, which is more"
                f" than compactory.max.removed.percent={percent} allows; if it is meant, add --approve"
            )


def repair(connector: ConnectorConfig, kafka: Kafka, table: str, keys: Collection[bytes]) -> ResentRows:
    """Send the rows of these keys of ``schema.table`` again, as they are at that moment.

    Raises LeaseLost where a source has the lease, ConfigError, Unreachable, CompactoryError.
    """
    with closing(Lease(connector, lambda _status: None)) as lease:
        lease.take()
        with connected(connector.connection) as server, closing(Publisher.of(connector, kafka, lease)) as publisher:
            return _send(connector, kafka, server, publisher, table, keys)


def _send(
    connector: ConnectorConfig, kafka: Kafka, server: Server, publisher: Publisher, table: str, keys: Collection[bytes]
) -> ResentRows:
    plan = next(plan for plan in plan_tables(server, connector) if plan.qualified == table)
    publisher.open()
    key = key_of(connector.name, server.database, plan)
    stored = next((item for item in read_offsets(kafka) if item.key == key), None)
    if stored is None or stored.value is None:
        raise ConfigError(f"{plan.label}: no source has polled it; run one, it sends every row")
    guard = RemovalGuard(server, plan, publisher, partial(_tell, table))
    return resend_rows(server, kafka, plan, guard, keys, (key, stored.value))


def _tell(table: str, stopped: int) -> None:
    log.error("removals of living rows stopped", table=table, keys=stopped)

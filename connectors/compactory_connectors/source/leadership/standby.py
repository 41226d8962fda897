"""A source that waits for its turn: it has checked that it could publish, and looks at the lease now and then."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

import structlog

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition

from ..config.connector import ConnectorConfig
from ..control.control import Control, Stop
from ..control.status import StatusBoard
from ..plan.planning import find_plans
from ..postgres.server import connected
from ..publish.publisher import Publisher, PublishLease
from ..publish.topics import OFFSETS_TOPIC
from .claim import TTL
from .lease import LeaseTaken

__all__ = ["Standby", "end_abandoned"]

log = structlog.get_logger("compactory.source")

_LOOK: Final = 0.25
"""Seconds between two looks at the lease."""


class Standby:
    """Waits for one connector's lease. Owned by the source's thread."""

    def __init__(self, connector: ConnectorConfig, control: Control, board: StatusBoard) -> None:
        self._connector = connector
        self._control = control
        self._board = board
        self._since: float | None = None

    def end(self) -> None:
        """It is this source's turn."""
        self._since = None

    def wait(self, taken: LeaseTaken, stop: Stop, *, once: bool, strict: bool) -> None:
        """Wait a little, with ``once`` not for longer than a holder that has died keeps its lease: raises ``taken``.

        With ``strict`` tables that can't be polled are an error here as they were for a session. Raises ConfigError,
        Unreachable.
        """
        if self._since is None:
            self._show_tables(strict=strict)
            self._since = time.monotonic()
            log.info("source stands by", connector=self._connector.name, detail=str(taken))
        if once and time.monotonic() - self._since > TTL + _LOOK:
            raise taken
        self._board.stands_by(str(taken))
        self._control.wait(stop, _LOOK)

    def _show_tables(self, *, strict: bool) -> None:
        with connected(self._connector.connection) as server:
            found = find_plans(server, self._connector)
        if strict and (problems := found.all_problems):
            raise ConfigError(problems)
        self._board.only([plan.qualified for plan in found.plans])
        for plan in found.plans:
            how = plan.reading
            self._board.table(plan.qualified, plan.topic, adopted=plan.adopted, reading=how.value, covered=how.covered)


def end_abandoned(connector: ConnectorConfig, kafka: Kafka, lease: PublishLease) -> None:
    """Abort a transaction that an earlier holder left open in the offsets topic: it would hide what comes after it.

    Kafka would end it by itself, after its time-out and up to 10 s more, as that often brokers look
    (``transaction.abort.timed.out.transaction.cleanup.interval.ms``). Taking the transactional id over ends it now.
    To be called by the holder of the lease, before it reads offsets. Raises LeaseLost, Unreachable, ConfigError.
    """
    place = [Partition(OFFSETS_TOPIC, 0)]
    if not connector.transactions or OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return
    if kafka.stable_offsets(place) != kafka.high_watermarks(place):
        with closing(Publisher.of(connector, kafka, lease)) as publisher:
            publisher.open()

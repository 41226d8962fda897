"""Between two sessions: reads the operator's target, stores a new one and waits while it is a pause.

Owned by the source's thread, which holds the lease meanwhile; there is no session, hence no snapshot in Postgres.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Final

import structlog

from compactory.errors import CompactoryError, Unreachable
from compactory.kafka.client import Kafka

from ..config.connector import ConnectorConfig
from ..control.control import Control, Stop, TargetState, target_key
from ..control.status import SourceState, StatusBoard
from ..publish.publisher import Publisher
from ..publish.topics import OFFSETS_TOPIC, ensure, stored_values

__all__ = ["LOOK", "Pausing", "read_target_state", "write_target_state"]

LOOK: Final = 10.0
"""Seconds after which a paused source looks whether the offsets topic says otherwise by now."""

log = structlog.get_logger("compactory.source")


class Pausing:
    """Keeps one connector paused for as long as that is wanted. Raises Unreachable, LeaseLost, ConfigError."""

    def __init__(
        self, connector: ConnectorConfig, kafka: Kafka, control: Control, board: StatusBoard, *, create: bool
    ) -> None:
        self._connector = connector
        self._kafka = kafka
        self._control = control
        self._board = board
        self._create = create

    def before_session(self, stop: Stop, *, once: bool) -> bool:
        """Return when publishing is wanted, or ``stop`` is set; whether it had to wait.

        With ``once`` a pause is an error: what is committed can't be published.
        """
        self._control.keep(read_target_state(self._kafka, self._connector.name))
        if once and self._control.paused:
            raise CompactoryError(
                f"connector {self._connector.name!r} is paused; end that with: compactory source resume"
            )
        waited = self.wait(stop)
        if not stop.is_set():
            self._store()
        return waited

    def wait(self, stop: Stop) -> bool:
        """Return when it is not paused any more, or ``stop`` is set; whether it had to wait. Kafka may be away."""
        waited = False
        while self._control.paused and not stop.is_set():
            waited = True
            self._rest(stop)
        return waited

    def _rest(self, stop: Stop) -> None:
        """Wait for an order, for the stop, or until it is time to look whether somebody resumed it from elsewhere."""
        detail = "an operator paused it; compactory source resume ends that"
        self._board.connector(SourceState.PAUSED, detail)
        try:
            self._store()
        except Unreachable as error:
            later = f"{detail}; not stored yet, so that a restart of the process would end it: {error}"
            self._board.connector(SourceState.PAUSED, later)
        self._control.wait(stop, LOOK)
        with suppress(Unreachable):  # a pause is kept while Kafka is away
            self._control.keep(read_target_state(self._kafka, self._connector.name))
        if not self._control.paused and not stop.is_set():
            self._board.connector(SourceState.STARTING)
            log.info("source resumed", connector=self._connector.name)

    def _store(self) -> None:
        """Store a target that was ordered and is not stored yet."""
        target_state = self._control.target_state
        if not self._control.stored:
            write_target_state(self._connector, self._kafka, target_state, create=self._create)
            self._control.keep(target_state)
            log.info("target stored", connector=self._connector.name, target=target_state.target.value)


def read_target_state(kafka: Kafka, connector: str) -> TargetState:
    """The stored target. Raises Unreachable, and ConfigError where the cluster refuses us."""
    if OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return TargetState()
    return TargetState.loads(stored_values(kafka).get(target_key(connector)))


def write_target_state(
    connector: ConnectorConfig, kafka: Kafka, target_state: TargetState, *, create: bool = True
) -> None:
    """Store it under the connector's transactional id, which fences: for the one that may publish, between sessions.

    Raises LeaseLost, Unreachable, ConfigError.
    """
    ensure(kafka, {}, create=create)
    with closing(Publisher.of(connector, kafka)) as publisher:
        publisher.open()
        publisher.amend([(target_key(connector.name), target_state.dumps(), [])])

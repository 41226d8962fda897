"""A source runs one connector: it opens sessions, waits out failures of Postgres and Kafka, and stops when told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from compactory.errors import CompactoryError, LeaseLost, Unreachable
from compactory.kafka import Kafka

from .backoff import Backoff
from .connector_config import ConnectorConfig
from .control import Control, Halt, Stop
from .pausing import Pausing
from .session import Session
from .status import SourceState, SourceStatus, StatusBoard

__all__ = ["Source"]

log = structlog.get_logger("compactory.source")


class Source:
    """Polls the tables of one connector into their topics.

    :meth:`run` belongs to one thread; :meth:`status` may be called from any. Two sources of the same connector name
    fence each other by the transactional id: the earlier one raises LeaseLost.
    """

    def __init__(
        self, connector: ConnectorConfig, kafka: Kafka | str | Mapping[str, Any], *, create_topics: bool = True
    ) -> None:
        self._connector = connector
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._create_topics = create_topics
        self._board = StatusBoard(connector.name)
        self.control = Control()
        """What operators want of it."""
        self._pausing = Pausing(connector, self._kafka, self.control, self._board, create=create_topics)
        self._opened = False  # nor was it paused: from then on it waits for as long as it takes
        self._log = log.bind(connector=connector.name)

    def status(self) -> SourceStatus:
        """What it is doing now."""
        return replace(self._board.picture(), aim=self.control.aim, aim_stored=self.control.stored)

    def run(self, stop: threading.Event, *, once: bool = False, patience: float = 30.0) -> None:
        """Publish changes until ``stop`` is set, or with ``once`` until everything committed before now is in Kafka.

        Outages are waited out with back-off. Until the first session is open, and with ``once`` always, a system that
        stays away for ``patience`` seconds raises Unreachable; ConfigError is raised at once. LeaseLost is raised
        whenever another source takes over.
        """
        for note in self._connector.notes:
            self._log.info(note)
        backoff = Backoff()
        deadline = time.monotonic() + patience
        try:
            while not stop.is_set():
                try:
                    self._opened |= self._pausing.before_session(stop, once=once)
                    self._live(Halt(stop, self.control), once, backoff)
                    if once:
                        break
                except LeaseLost:
                    raise
                except CompactoryError as error:
                    hopeless = not error.retryable or time.monotonic() >= deadline
                    if hopeless and (once or not self._opened):
                        raise
                    self._wait_out(error, stop, backoff)
        except BaseException as error:
            self._board.connector(SourceState.FAILED, str(error))
            raise
        self._board.connector(SourceState.STOPPED)

    def _live(self, stop: Stop, once: bool, backoff: Backoff) -> None:
        """One session, until it fails, ``stop`` is set, or with ``once`` its first round is done."""
        self.control.take_restart()
        if stop.is_set():
            return
        session = Session.open(
            self._connector,
            self._kafka,
            self._board,
            create_topics=self._create_topics,
            strict=once or not self._opened,
            control=self.control,
        )
        try:
            self._opened = True
            self._board.connector(SourceState.RUNNING)
            woken = False
            while not stop.is_set():
                busy = session.round(stop, woken=woken)
                backoff.reset()
                if once:
                    self._raise_failures(session)
                    break
                woken = busy or session.rest(stop)
        finally:
            session.close()

    def _raise_failures(self, session: Session) -> None:
        """With ``once`` a table that failed is an error; the others were published all the same."""
        if failures := session.failures():
            raise CompactoryError("; ".join(failures))

    def _wait_out(self, error: CompactoryError, stop: Stop, backoff: Backoff) -> None:
        pause = backoff.pause()
        waiting = isinstance(error, Unreachable)
        self._board.connector(SourceState.WAITING if waiting else SourceState.FAILED, str(error))
        self._board.failed(str(error))
        self._log.warning("source waits", error=str(error), retry_in_seconds=round(pause, 2))
        self.control.wait(stop, pause)

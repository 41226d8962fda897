"""A source runs one connector: it opens sessions, waits out failures of Postgres and Kafka, and stops when told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from compactory.errors import CompactoryError, LeaseLost, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.backoff import Backoff
from compactory_connectors.kafka.publisher import TransactionTimedOut

from ..config.connector import ConnectorConfig
from ..offsets.offset import Edit
from ..offsets.stored_offsets import stored_edits
from ..offsets.target_state import read_target_state, write_target_state
from ..planning.planner import find_plans
from ..postgres.chunk_reader import PageBytes
from ..postgres.server import connected
from ..status.orders import Control, Halt, Stop
from ..status.status import SourceState, SourceStatus, StatusBoard
from .claim import TTL
from .lease import Lease, LeaseContested, LeaseTaken, LeaseUnsure, end_abandoned
from .session import Session

__all__ = ["PAUSED_LOOK", "Source"]

log = structlog.get_logger("compactory.source")

PAUSED_LOOK: Final = 10.0
"""Seconds after which a paused source looks whether the offsets topic says otherwise by now."""

_STANDBY_LOOK = 0.25  # seconds between two looks at the lease
_FENCED_PAUSE = 2.0  # seconds
_FENCED_MOST = 3
_FENCED_WITHIN = 600.0  # seconds


class Source:
    """Polls the tables of one connector into their topics.

    :meth:`run` belongs to one thread; :meth:`status` may be called from any. Of several sources of one connector one
    has the lease and publishes; the others stand by. A source that lost the lease can't publish: the transactional id
    fences it.
    """

    def __init__(
        self, connector: ConnectorConfig, kafka: Kafka | str | Mapping[str, Any], *, create_topics: bool = True
    ) -> None:
        self._connector = connector
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._create_topics = create_topics
        self._board = StatusBoard(connector.name)
        self.control = Control()
        """Takes the orders of operators."""
        self._page_bytes = PageBytes()
        self._fenced: list[float] = []  # when, by others than holders of the lease and edits of offsets
        self._known_edits: set[Edit] = set()
        self._stands_by_since: float | None = None
        self._opened = False  # nor was it paused: from then on it waits for as long as it takes
        self._log = log.bind(connector=connector.name)

    def status(self) -> SourceStatus:
        """The state of the connector and of its tables now."""
        return replace(
            self._board.picture(), target_state=self.control.target_state, target_state_stored=self.control.stored
        )

    def run(self, stop: threading.Event, *, once: bool = False, patience: float = 30.0) -> None:
        """Publish changes until ``stop`` is set, or with ``once`` until everything committed before now is in Kafka.

        The source waits for the end of outages, with back-off. Until the first session is open, and with ``once``
        always, a system that stays away for ``patience`` seconds raises Unreachable; ConfigError is raised at once.

        While another source has the lease this one stands by. With ``once`` it raises LeaseLost after some seconds. It
        also raises LeaseLost if sources without a common lease fence each other repeatedly.
        """
        for note in self._connector.notes:
            self._log.info(note)
        lease = Lease(self._connector, self._board.lease)
        try:
            self._run(lease, stop, once, time.monotonic() + patience)
        except BaseException as error:
            self._board.connector(SourceState.FAILED, str(error))
            raise
        finally:
            lease.close()
        self._board.connector(SourceState.STOPPED)

    def _run(self, lease: Lease, stop: Stop, once: bool, deadline: float) -> None:
        backoff = Backoff()
        while not stop.is_set():
            try:
                if self._turn(lease, stop, once, backoff):
                    break
            except (LeaseTaken, LeaseContested) as error:
                raise LeaseLost(str(error)) from error
            except LeaseLost as error:
                self._wait_fenced(error, lease, stop)
            except CompactoryError as error:
                hopeless = not error.retryable or time.monotonic() >= deadline
                if hopeless and (once or not self._opened):
                    raise
                self._wait_out(error, stop, backoff)

    def _turn(self, lease: Lease, stop: Stop, once: bool, backoff: Backoff) -> bool:
        """A session where the lease is to be had, else a little wait for it; whether ``once`` is satisfied."""
        if not self._take(lease, stop, once):
            backoff.reset()
            return False
        lost = Halt(stop.is_set, lambda: not lease.held)
        self._wait_paused(lost)  # ordered just now: that counts whether or not Kafka can be asked
        end_abandoned(self._connector, self._kafka, lease)
        self.control.keep(read_target_state(self._kafka, self._connector.name))
        if once and self.control.paused:
            raise CompactoryError(
                f"connector {self._connector.name!r} is paused; end that with: compactory source resume"
            )
        self._wait_paused(lost)
        if not lost.is_set():
            self._store_target()
        return self._live(Halt(lost.is_set, lambda: self.control.interrupts), lease, once, backoff)

    def _take(self, lease: Lease, stop: Stop, once: bool) -> bool:
        """Take the lease, or stand by for a little while; whether it is ours."""
        try:
            lease.take()
        except LeaseTaken as taken:
            self.control.forget()
            self._stand_by(taken, stop, once)
            self._opened = True
            self._fenced.clear()
            return False
        self._stands_by_since = None
        if len(self._fenced) >= _FENCED_MOST:
            raise LeaseContested(
                f"the transactional id of connector {self._connector.name!r} was taken over {_FENCED_MOST} times,"
                " although nobody else has its lease: another source of this name runs on another database, as a role"
                " that may not write compactory.leases, or in an older version; stop it, or give it another name"
            )
        return True

    def _stand_by(self, taken: LeaseTaken, stop: Stop, once: bool) -> None:
        """Wait a little for the lease, with ``once`` not for longer than a holder that has died keeps it.

        Tables that can't be polled are an error here as they would be for a session.
        """
        if self._stands_by_since is None:
            self._show_tables(strict=once or not self._opened)
            self._stands_by_since = time.monotonic()
            self._log.info("source stands by", detail=str(taken))
        if once and time.monotonic() - self._stands_by_since > TTL + _STANDBY_LOOK:
            raise taken
        self._board.stands_by(str(taken))
        self.control.wait(stop, _STANDBY_LOOK)

    def _show_tables(self, *, strict: bool) -> None:
        with connected(self._connector.connection) as server:
            found = find_plans(server, self._connector)
        if strict:
            found.sound()
        self._board.only([plan.qualified for plan in found.plans])
        for plan in found.plans:
            how = plan.reading
            self._board.table(plan.qualified, plan.topic, adopted=plan.adopted, reading=how.value, covered=how.covered)

    def _wait_paused(self, stop: Stop) -> None:
        """Return when it is not paused any more, or ``stop`` is set. The pause is kept while Kafka is away.

        It has the lease meanwhile, but no session, and so no snapshot in Postgres.
        """
        detail, waited = "an operator paused it; compactory source resume ends that", False
        while self.control.paused and not stop.is_set():
            self._board.connector(SourceState.PAUSED, detail)
            try:
                self._store_target()
            except Unreachable as error:
                later = f"{detail}; not stored yet, so that a restart of the process would end it: {error}"
                self._board.connector(SourceState.PAUSED, later)
            self.control.wait(stop, PAUSED_LOOK)
            with suppress(Unreachable):  # somebody may have resumed it from elsewhere
                self.control.keep(read_target_state(self._kafka, self._connector.name))
            waited = True
        if waited and not stop.is_set():
            self._board.connector(SourceState.STARTING)
            self._log.info("source resumed")
        self._opened |= waited

    def _store_target(self) -> None:
        """Store a target that was ordered and is not stored yet."""
        target_state = self.control.target_state
        if not self.control.stored:
            write_target_state(self._connector, self._kafka, target_state, create=self._create_topics)
            self.control.keep(target_state)
            self._log.info("target stored", target=target_state.target.value)

    def _live(self, stop: Stop, lease: Lease, once: bool, backoff: Backoff) -> bool:
        """One session, until it fails or ``stop`` is set; with ``once`` its first round, and whether that was done."""
        self.control.take_restart()
        if stop.is_set():
            return False
        session = Session.open(
            self._connector,
            self._kafka,
            self._board,
            create_topics=self._create_topics,
            strict=once or not self._opened,
            control=self.control,
            lease=lease,
            page_bytes=self._page_bytes,
        )
        with closing(session):
            self._opened = True
            self._board.connector(SourceState.RUNNING)
            while not stop.is_set():
                busy = session.round(stop)
                backoff.reset()
                if once and not session.sweeping():
                    if failures := session.failures():  # the other tables were published all the same
                        raise CompactoryError("; ".join(failures))
                    return not stop.is_set()
                if once or not busy:
                    session.rest(stop)
        return False

    def _wait_fenced(self, error: LeaseLost, lease: Lease, stop: Stop) -> None:
        """Somebody took the transactional id over. If it was a new holder of the lease, the next look finds it.

        Else it was an edit of offsets, which gets the time to end and does not count, or a source without the lease.
        """
        now = time.monotonic()
        self._fenced = [*(at for at in self._fenced if now - at < _FENCED_WITHIN), now]
        self._board.connector(SourceState.WAITING, str(error))
        self._log.warning("source fenced", error=str(error))
        if lease.held:
            self.control.wait(stop, _FENCED_PAUSE)
            if self._was_edited():
                self._fenced.pop()

    def _was_edited(self) -> bool:
        """Return True if the connector's offsets were edited since the last call."""
        try:
            edits = stored_edits(self._kafka, self._connector.name)
        except Unreachable:
            return False
        fresh = edits - self._known_edits
        self._known_edits |= edits
        return bool(fresh)

    def _wait_out(self, error: CompactoryError, stop: Stop, backoff: Backoff) -> None:
        pause = backoff.pause()
        waiting = isinstance(error, Unreachable | LeaseUnsure | TransactionTimedOut)
        self._board.connector(SourceState.WAITING if waiting else SourceState.FAILED, str(error))
        self._board.failed(str(error))
        self._log.warning("source waits", error=str(error), retry_in_seconds=round(pause, 2))
        self.control.wait(stop, pause)

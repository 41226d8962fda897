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
from ..offsets.offset_parts import Edit
from ..offsets.stored_offsets import read_target_state, stored_edits, write_target_state
from ..planning.planner import find_plans
from ..postgres.chunk_reader import PageBytes
from ..postgres.server import connected
from ..status.board import StatusBoard
from ..status.orders import Orders, Stop, StopWhen
from ..status.status import SourceState, SourceStatus
from .claim import TTL
from .lease import Lease, LeaseContested, LeaseTaken, LeaseUnsure, end_abandoned
from .session import Session

__all__ = ["PAUSE_CHECK_INTERVAL", "Source"]

log = structlog.get_logger("compactory.source")

PAUSE_CHECK_INTERVAL: Final = 10.0
"""Seconds after which a paused source reads its target state from the offsets topic again."""

_STANDBY_INTERVAL = 0.25  # seconds between two attempts to take the lease
_TAKEOVER_PAUSE = 2.0  # seconds
_MOST_TAKEOVERS = 3
_TAKEOVER_WINDOW = 600.0  # seconds


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
        self.orders = Orders()
        """Takes the orders of operators."""
        self._page_bytes = PageBytes()
        self._takeovers: list[float] = []  # of the transactional id, by neither a holder of the lease nor an edit
        self._seen_edits: set[Edit] = set()
        self._standby_since: float | None = None
        self._has_started = False  # it has opened a session, stood by or been paused: outages are waited out
        self._log = log.bind(connector=connector.name)

    def status(self) -> SourceStatus:
        return replace(
            self._board.picture(),
            target_state=self.orders.target_state,
            target_state_stored=self.orders.is_target_stored,
        )

    def run(self, stop: threading.Event, *, once: bool = False, timeout: float = 30.0) -> None:
        """Publish changes until ``stop`` is set, or with ``once`` until everything committed before now is in Kafka.

        The source waits for the end of outages, with back-off. Until the first session is open, and with ``once``
        always, a system that stays away for ``timeout`` seconds raises Unreachable; ConfigError is raised at once.

        While another source has the lease this one stands by. With ``once`` it raises LeaseLost after some seconds. It
        also raises LeaseLost if sources without a common lease fence each other repeatedly.
        """
        for note in self._connector.notes:
            self._log.info(note)
        lease = Lease(self._connector, self._board.set_lease)
        try:
            self._run_sessions(lease, stop, once, time.monotonic() + timeout)
        except BaseException as error:
            self._board.set_state(SourceState.FAILED, str(error))
            raise
        finally:
            lease.close()
        self._board.set_state(SourceState.STOPPED)

    def _run_sessions(self, lease: Lease, stop: Stop, once: bool, deadline: float) -> None:
        backoff = Backoff()
        is_done = False
        while not is_done and not stop.is_set():
            try:
                if self._take(lease, stop, once):
                    is_done = self._run_session(lease, stop, once, backoff)
                else:
                    backoff.reset()
            except (LeaseTaken, LeaseContested) as error:
                raise LeaseLost(str(error)) from error
            except LeaseLost as error:
                self._wait_after_takeover(error, lease, stop)
            except CompactoryError as error:
                is_final = not error.retryable or time.monotonic() >= deadline
                if is_final and (once or not self._has_started):
                    raise
                self._wait_after_failure(error, stop, backoff)

    def _take(self, lease: Lease, stop: Stop, once: bool) -> bool:
        """Take the lease, or stand by for a moment. Return True if this source has it."""
        try:
            lease.take()
        except LeaseTaken as error:
            self.orders.drop()
            self._stand_by(error, stop, once)
            self._has_started = True
            self._takeovers.clear()
            return False
        self._standby_since = None
        if len(self._takeovers) >= _MOST_TAKEOVERS:
            raise LeaseContested(
                f"the transactional id of connector {self._connector.name!r} was taken over {_MOST_TAKEOVERS} times,"
                " although nobody else has its lease: another source of this name runs on another database, as a role"
                " that may not write compactory.leases, or in an older version; stop it, or give it another name"
            )
        return True

    def _stand_by(self, error: LeaseTaken, stop: Stop, once: bool) -> None:
        """Wait for the lease for a moment. With ``once`` raise ``error`` after the time that a dead holder keeps it.

        Tables that can't be polled are an error here as they would be for a session.
        """
        if self._standby_since is None:
            self._show_tables(strict=once or not self._has_started)
            self._standby_since = time.monotonic()
            self._log.info("source stands by", detail=str(error))
        if once and time.monotonic() - self._standby_since > TTL + _STANDBY_INTERVAL:
            raise error
        self._board.set_standby(str(error))
        self.orders.wait(stop, _STANDBY_INTERVAL)

    def _show_tables(self, *, strict: bool) -> None:
        with connected(self._connector.connection) as server:
            discovered = find_plans(server, self._connector)
        if strict:
            discovered.sound()
        self._board.retain_tables([plan.qualified for plan in discovered.plans])
        for plan in discovered.plans:
            self._board.add_table(plan.qualified, plan.topic, adopted=plan.adopted, reading=plan.reading)

    def _run_session(self, lease: Lease, stop: Stop, once: bool, backoff: Backoff) -> bool:
        """Wait while the connector is paused. Then run a session until it fails or has to end.

        With ``once`` run its first round, and return True if that was completed.
        """
        lost = StopWhen(stop.is_set, lambda: not lease.is_held)
        self._wait_while_paused(lost)  # a pause that this process ordered counts whether or not Kafka answers
        end_abandoned(self._connector, self._kafka, lease)
        self._read_target()
        if once and self.orders.is_paused:
            raise CompactoryError(
                f"connector {self._connector.name!r} is paused; end that with: compactory source resume"
            )
        self._wait_while_paused(lost)
        if not lost.is_set():
            self._store_target()
        self.orders.take_restart()
        ending = StopWhen(lost.is_set, lambda: self.orders.ends_session)
        if ending.is_set():
            return False
        session = Session.open(
            self._connector,
            self._kafka,
            self._board,
            create_topics=self._create_topics,
            strict=once or not self._has_started,
            orders=self.orders,
            lease=lease,
            page_bytes=self._page_bytes,
        )
        with closing(session):
            self._has_started = True
            self._board.set_state(SourceState.RUNNING)
            while not ending.is_set():
                has_published = session.poll_tables(ending)
                backoff.reset()
                if once and not session.is_sweeping():
                    if failures := session.failures():  # the other tables were published all the same
                        raise CompactoryError("; ".join(failures))
                    return not ending.is_set()
                if once or not has_published:
                    session.wait(ending)
        return False

    def _wait_while_paused(self, stop: Stop) -> None:
        """Return when the connector is not paused, or ``stop`` is set. A pause lasts while Kafka is away.

        Meanwhile the source has the lease, but no session, and so no snapshot in Postgres.
        """
        if stop.is_set() or not self.orders.is_paused:
            return
        self._has_started = True
        detail = "an operator paused it; compactory source resume ends that"
        while not stop.is_set() and self.orders.is_paused:
            self._board.set_state(SourceState.PAUSED, detail)
            try:
                self._store_target()
            except Unreachable as error:
                problem = f"{detail}; not stored yet, so that a restart of the process would end it: {error}"
                self._board.set_state(SourceState.PAUSED, problem)
            self.orders.wait(stop, PAUSE_CHECK_INTERVAL)
            with suppress(Unreachable):  # somebody may have resumed it from elsewhere
                self._read_target()
        if not stop.is_set():
            self._board.set_state(SourceState.STARTING)
            self._log.info("source resumed")

    def _read_target(self) -> None:
        self.orders.target_stored(read_target_state(self._kafka, self._connector.name))

    def _store_target(self) -> None:
        """Store a target that was ordered and is not stored yet."""
        target_state = self.orders.target_state
        if not self.orders.is_target_stored:
            write_target_state(self._connector, self._kafka, target_state, create=self._create_topics)
            self.orders.target_stored(target_state)
            self._log.info("target stored", target=target_state.target.value)

    def _wait_after_takeover(self, error: LeaseLost, lease: Lease, stop: Stop) -> None:
        """Wait after another process took the transactional id over.

        If that was a new holder of the lease, the next attempt to take the lease shows it. Else it was an edit of
        offsets, which gets the time to end and does not count, or a source without the lease.
        """
        lost_at = time.monotonic()
        self._takeovers = [*(at for at in self._takeovers if lost_at - at < _TAKEOVER_WINDOW), lost_at]
        self._board.set_state(SourceState.WAITING, str(error))
        self._log.warning("source fenced", error=str(error))
        if lease.is_held:
            self.orders.wait(stop, _TAKEOVER_PAUSE)
            if self._was_edited():
                self._takeovers.pop()

    def _was_edited(self) -> bool:
        """Return True if the connector's offsets were edited since the last call."""
        try:
            edits = stored_edits(self._kafka, self._connector.name)
        except Unreachable:
            return False
        new_edits = edits - self._seen_edits
        self._seen_edits |= edits
        return bool(new_edits)

    def _wait_after_failure(self, error: CompactoryError, stop: Stop, backoff: Backoff) -> None:
        pause = backoff.pause()
        is_outage = isinstance(error, Unreachable | LeaseUnsure | TransactionTimedOut)
        self._board.set_state(SourceState.WAITING if is_outage else SourceState.FAILED, str(error))
        self._board.record_session_failure(str(error))
        self._log.warning("source waits", error=str(error), retry_in_seconds=round(pause, 2))
        self.orders.wait(stop, pause)

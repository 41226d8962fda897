"""One connected life of a connector: from the offsets it found to the first failure of Postgres or Kafka.

Owned by one thread. A failure of either side ends the session; whoever runs it opens another one, which reads the
offsets again, so nothing that was in flight needs to be remembered. What goes wrong with one table alone, and tables
that come and go, don't disturb the others.
"""

from __future__ import annotations

import time
from typing import Self

import psycopg
import structlog

from compactory.errors import ConfigError
from compactory.kafka import Kafka

from .connector_config import ConnectorConfig
from .control import Control, Stop
from .horizon import Snapshot
from .lineup import Lineup
from .page import RowFailed
from .planning import find_plans
from .polled import PolledTable, Sink
from .publisher import Permit, Publisher
from .server import Server, TableReplaced, postgres_errors, refusal
from .status import StatusBoard
from .topics import OFFSETS_TOPIC

__all__ = ["Session"]

log = structlog.get_logger("compactory.source")

_SLICE = 0.25  # seconds; how long a wait may take to notice that the source should stop


class Session:
    """Polls the connector's tables and publishes what it finds. See :class:`Source` for the errors it raises."""

    def __init__(self, sink: Sink, server: Server) -> None:
        self._sink = sink
        self._connector = sink.connector
        self._server = server
        self._lineup = Lineup(sink, server)
        self._blocked = 0.0
        self._current: Snapshot | None = None

    @classmethod
    def open(
        cls,
        connector: ConnectorConfig,
        kafka: Kafka,
        board: StatusBoard,
        *,
        create_topics: bool,
        strict: bool = True,
        control: Control | None = None,
        permit: Permit | None = None,
    ) -> Self:
        """Connect to both sides, check tables and topics, fence earlier holders, read the offsets.

        Nothing is written before everything has been checked. With ``strict`` a table that can't be polled is an error;
        else it is shown, and the others are polled. Raises ConfigError, Unreachable, LeaseLost.
        """
        with postgres_errors(connector.connection):
            server = Server.open(connector.connection.conninfo)
        try:
            with postgres_errors(connector.connection):
                server.announce(connector.name)
                found = find_plans(server, connector)
            problems = [*found.problems, *(problem for _, its in found.unfit for problem in its)]
            if problems and (strict or not found.plans):
                raise ConfigError(problems)
            publisher = Publisher(
                kafka,
                connector.name,
                OFFSETS_TOPIC,
                transactions=connector.transactions,
                overrides=connector.producer,
                permit=permit,
            )
            allowed = create_topics and connector.topics.create
            sink = Sink(
                connector=connector,
                kafka=kafka,
                publisher=publisher,
                board=board,
                create_topics=allowed,
                control=control or Control(),
            )
            session = cls(sink, server)
            try:
                with postgres_errors(connector.connection):
                    session._lineup.begin(found, strict=strict)
            except BaseException:
                publisher.close()
                raise
        except BaseException:
            server.close()
            raise
        return session

    def close(self) -> None:
        """Let go of both sides; what was not acknowledged is sent again by the next session."""
        self._sink.publisher.close()
        self._server.close()

    def failures(self) -> list[str]:
        """What keeps tables from being polled, and whether there are none at all."""
        return self._lineup.failures()

    def round(self, stop: Stop, *, woken: bool = False) -> bool:
        """Poll every table that is due, or with ``woken`` those that notify; whether anything was published.

        ``stop`` is heard between the pages of a poll: the next session goes on there.
        """
        self._lineup.check_topics()
        with postgres_errors(self._connector.connection):
            self._heed()
            self._lineup.check_tables()
            current = self._current or self._server.peek()
            self._current = None
            published = False
            now, looked_at = time.monotonic(), time.time()
            for table in self._lineup:
                wanted = self._sink.control.wants(table.name)
                if not (wanted or (woken and table.plan.notifies and not table.ailing)) and now < table.due:
                    continue
                table.due = now + self._connector.poll_interval_ms / 1000
                published |= self._poll(table, current, looked_at, stop)
            return published

    def rest(self, stop: Stop) -> bool:
        """Wait until a writer notifies, a table is due or ``stop`` is set; whether a writer did."""
        oids = [table.plan.oid for table in self._lineup if table.plan.notifies]
        until = self._lineup.due
        if not oids:
            stop.wait(max(0.0, until - time.monotonic()))
            return False
        with postgres_errors(self._connector.connection):
            try:
                self._current = self._server.sleep(oids)
                if self._current is None:
                    # A writer that saw the source awake has not committed: it will not notify, so look again soon.
                    self._blocked = min(_SLICE, self._blocked * 2 or 0.002)
                    stop.wait(self._blocked)
                    return True
                self._blocked = 0.0
                return self.round(stop, woken=True) or self._notified(until, stop)
            finally:
                if not self._server.connection.closed:
                    self._current = self._server.wake()

    def _heed(self) -> None:
        """Look afresh at the tables that an operator wants restarted; other orders are for the tables."""
        self._sink.control.changed.clear()
        for name in self._sink.control.take_restarts():
            self._lineup.restart(name)

    def _notified(self, until: float, stop: Stop) -> bool:
        while not stop.is_set():
            left = until - time.monotonic()
            if left <= 0 or self._sink.control.changed.is_set():
                return False
            if self._server.wait(min(left, _SLICE)):
                return True
        return False

    def _poll(self, table: PolledTable, current: Snapshot, looked_at: float, stop: Stop) -> bool:
        """Poll one table; whether anything was published. What fails of it alone is kept with it."""
        try:
            published = False
            if table.ailing or self._sink.control.wants(table.name) or not table.reader.is_idle(current):
                if self._waits(table, current):
                    return False
                published = table.drain(stop)
        except RowFailed as error:
            table.failed(f"{table.plan.label}: {error}")
        except TableReplaced:
            self._lineup.plan_again(table)
        except psycopg.errors.LockNotAvailable:
            table.locked(self._server.lockers(table.plan.oid))
        except psycopg.Error as error:
            if self._server.connection.closed:
                raise
            table.failed(f"{table.plan.label}: {refusal(error)}")
        else:
            self._sink.board.current(table.name, looked_at)
            return published
        return False

    def _waits(self, table: PolledTable, current: Snapshot) -> bool:
        """Whether an open transaction has made what is to be remembered too much to go on."""
        xid = table.reader.waits_for(current)
        if xid is None:
            self._sink.board.resumed(table.name)
            return False
        holders = self._server.holders(xid)
        detail = f"an open transaction holds the snapshot's floor back: {'; '.join(holders) or 'of another database'}"
        log.error("table waits", table=table.name, detail=detail)
        self._sink.board.waits(table.name, detail)
        return True

"""A session of a connector: from the offsets that it reads to the first failure of Postgres or Kafka.

Owned by one thread. A failure of either side ends the session. The next one reads the offsets again, so nothing that
was in flight needs to be remembered. Faults of one table alone, and tables that come and go, don't disturb the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Self

import psycopg
import structlog

from compactory.errors import CompactoryError, ConfigError, LeaseLost, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.connect.record.record import RowFailed
from compactory_connectors.kafka.publisher import PublishLease, TopicRefused
from compactory_connectors.postgres.postgres_errors import postgres_errors, refusal
from compactory_connectors.postgres.snapshot import Snapshot

from ..config.connector import ConnectorConfig
from ..mapping.function_call import class_and_place
from ..offsets.topics import publisher_of
from ..planning.planner import Cause, find_plans
from ..polling.removal import PollHeld
from ..postgres.chunk_reader import PageBytes
from ..postgres.poll_transaction import TableReplaced
from ..postgres.server import Server
from ..postgres.transactions import OldestTransaction, open_transactions
from ..status.board import StatusBoard
from ..status.orders import Orders, Stop
from .heartbeat import Heartbeat
from .lease import LeaseUnsure
from .offset_checks import PublishedTopics
from .scheduler import Scheduler
from .session_context import SessionContext
from .table_registry import TableRegistry
from .table_task import TableTask

__all__ = ["Session"]

log = structlog.get_logger("compactory.source")

_FIRST_SNAPSHOT = Snapshot(0, 0)  # sorts before every transaction id: a reader that need not wait at it never waits


class PublisherLost(CompactoryError):
    """The publisher can't be used any more; a new session opens another one."""

    retryable = True


class Session:
    """Polls the connector's tables and publishes their changes. See :class:`Source` for the errors it raises."""

    def __init__(self, context: SessionContext, server: Server) -> None:
        self._context = context
        self._connector = context.connector
        self._server = server
        self._registry = TableRegistry(context, server)
        self._oldest = OldestTransaction(server)
        self._scheduler = Scheduler(server, self._registry, context.orders)
        self._heartbeat = Heartbeat(context, server)
        self._resources = ExitStack()  # closed by :meth:`close`

    @classmethod
    def open(
        cls,
        connector: ConnectorConfig,
        kafka: Kafka,
        board: StatusBoard,
        *,
        create_topics: bool,
        strict: bool = True,
        orders: Orders | None = None,
        lease: PublishLease | None = None,
        page_bytes: PageBytes | None = None,
    ) -> Self:
        """Connect to both sides, check tables and topics, fence earlier holders, read the offsets.

        Nothing is written before everything has been checked. With ``strict`` a table that can't be polled is an error;
        else it is shown, and the others are polled. Raises ConfigError, Unreachable, LeaseLost.
        """
        with ExitStack() as resources, postgres_errors(connector.connection):
            server = resources.enter_context(closing(Server.open(connector.connection.conninfo)))
            server.mark_running(connector.name)
            discovered = find_plans(server, connector)
            problems = discovered.problems_of_start(tolerated=[Cause.LOCKED])
            if problems and (strict or not discovered.plans):
                raise ConfigError(problems)
            context = SessionContext(
                connector=connector,
                kafka=kafka,
                publisher=resources.enter_context(closing(publisher_of(connector, kafka, lease))),
                board=board,
                create_topics=create_topics and connector.create_topics,
                orders=orders or Orders(),
                page_bytes=page_bytes or PageBytes(),
                topics=PublishedTopics(kafka),
            )
            session = cls(context, server)
            resources.callback(session._scheduler.close)
            session._registry.open(discovered, strict=strict)
            session._heartbeat.open()
            session._resources = resources.pop_all()
        return session

    def close(self) -> None:
        """Disconnect from both sides; the next session sends again records that were not acknowledged."""
        self._registry.close()
        self._resources.close()

    def is_sweeping(self) -> bool:
        return any(table.cleanup.is_pending and not table.schedule.is_failing for table in self._registry)

    def failures(self) -> list[str]:
        return self._registry.failures()

    def poll_tables(self, stop: Stop) -> bool:
        """Poll every table that is due and may have changed. Return True if anything was published.

        Between the pages of a poll ``stop`` is checked: the next session goes on there.
        """
        context = self._context
        context.topics.check()
        with postgres_errors(self._connector.connection):
            context.orders.changed.clear()
            for name in context.orders.take_restarts():
                self._registry.restart(name)
            context.board.set_open_transaction(self._oldest.check())
            self._registry.discover()
            due = self._scheduler.due_tables()
            for table in due.unchanged:
                context.board.set_current(table.name, due.checked_at)
            has_published = False
            for table in due.to_poll:
                has_published |= self._poll(table, due.checked_at, stop)
            for table in self._registry:
                if table.is_sweep_due:
                    has_published |= self._attempt(table, partial(table.sweep, stop)) or False
                if not table.schedule.is_failing and (keys := context.orders.take_resend(table.name)):
                    has_published |= self._attempt(table, partial(self._resend, table, keys)) or False
            self._heartbeat.beat()
            return has_published

    def wait(self, stop: Stop) -> None:
        with postgres_errors(self._connector.connection):
            self._scheduler.wait(stop, until=self._heartbeat.due)

    def _poll(self, table: TableTask, checked_at: float, stop: Stop) -> bool:
        """Poll one table. Return True if the poll came to its end and published anything."""
        has_published = self._attempt(table, lambda: None if self._is_held(table) else table.poll(stop))
        if has_published is None:
            return False
        self._context.board.set_current(table.name, checked_at)
        self._context.board.set_remembered(table.name, table.remembered_transactions)
        self._scheduler.record_poll(table, has_published=has_published)
        return has_published

    def _resend(self, table: TableTask, keys: list[bytes]) -> bool:
        try:
            return table.resend(keys)
        except ConfigError as error:
            log.error("rows not sent again", table=table.name, detail=str(error))
            return False
        except BaseException:  # whatever it is, the order still stands
            self._context.orders.put_back(table.name, keys)
            raise

    def _attempt(self, table: TableTask, action: Callable[[], bool | None]) -> bool | None:
        """Run ``action`` and return its result; None if it failed for this table alone."""
        try:
            return action()
        except PollHeld as held:
            log.debug("table held", table=table.name, id=held.hold.id)
            table.schedule.record_hold(time.monotonic())
        except RowFailed as error:
            logged = error.log_text(name_rows=self._connector.errors.name_rows)
            self._fail(table, str(error), logged)
        except TableReplaced:
            self._registry.plan_again(table)
        except psycopg.Error as error:
            if self._server.connection.closed:
                raise
            self._refused_by_postgres(table, error)
        except CompactoryError as error:
            if self._concerns_all(error):
                raise
            self._fail(table, str(error))
            table.reset_reader()
        except Exception as error:  # noqa: BLE001 - a mistake of ours about one table must not stop the others
            self._failed_unexpectedly(table, error)
        return None

    def _refused_by_postgres(self, table: TableTask, error: psycopg.Error) -> None:
        if not isinstance(error, psycopg.errors.LockNotAvailable):
            self._fail(table, refusal(error))
            return
        table.schedule.record_locked(time.monotonic())
        holders = "; ".join(self._server.lock_holders(table.plan.oid)) or "a transaction that has ended meanwhile"
        detail = f"{table.plan.label} is locked by {holders}; tried again by itself"
        self._context.board.record_locked(table.name, detail)

    def _failed_unexpectedly(self, table: TableTask, error: Exception) -> None:
        """Show that the table failed. Raises PublisherLost if the publisher can't go on."""
        detail = f"unexpected error: {class_and_place(error)}"
        self._fail(table, detail)
        if not self._context.publisher.usable:
            raise PublisherLost(f"{table.plan.label}: {detail}") from error
        table.reset_reader()

    def _fail(self, table: TableTask, detail: str, logged: str | None = None) -> None:
        """Try the table again after a pause, unless its last attempt failed. ``logged``: the detail for logs."""
        remedy = ""
        if not table.schedule.record_failure(time.monotonic()):
            remedy = f"; given up after {table.schedule.failures} attempts, as query.retry.attempts says"
        log.error("table failed", table=table.name, detail=f"{table.plan.label}: {logged or f'{detail}{remedy}'}")
        self._context.board.record_failure(table.name, f"{table.plan.label}: {detail}{remedy}")

    def _concerns_all(self, error: CompactoryError) -> bool:
        """Return True if no table can be published now: a connection or the lease is lost."""
        if isinstance(error, TopicRefused):
            return False
        is_outage = isinstance(error, Unreachable) and error.system in {"Kafka", "Postgres"}
        return is_outage or isinstance(error, LeaseLost | LeaseUnsure) or not self._context.publisher.usable

    def _is_held(self, table: TableTask) -> bool:
        """Return True, and show the table as held, if an open transaction makes it remember more ids than it may."""
        may_wait = table.reader.blocking_xid(_FIRST_SNAPSHOT) is not None
        xid = table.reader.blocking_xid(self._server.current_snapshot()) if may_wait else None
        if xid is None:
            if table.waits_for_transaction:
                table.waits_for_transaction = False
                self._context.board.release(table.name)
            return False
        transactions = "; ".join(map(str, open_transactions(self._server, xid))) or "one that has ended meanwhile"
        detail = f"an open transaction has too many later ones to remember: {transactions}"
        log.error("table waits", table=table.name, detail=detail)
        table.waits_for_transaction = True
        self._context.board.hold(table.name, detail)
        return True

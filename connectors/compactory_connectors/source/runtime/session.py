"""One connected life of a connector: from the offsets it found to the first failure of Postgres or Kafka.

Owned by one thread. A failure of either side ends the session; whoever runs it opens another one, which reads the
offsets again, so nothing that was in flight needs to be remembered. Faults of one table alone, and tables that come and
go, don't disturb the others.
"""

from __future__ import annotations

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
from ..offsets.topics import TopicEnds, publisher_of
from ..planning.planner import Cause, find_plans
from ..polling.removal import RemovalHeld
from ..postgres.chunk_reader import PageBytes
from ..postgres.poll_transaction import TableReplaced
from ..postgres.server import Server
from ..postgres.transactions import OldestTransaction, open_transactions
from ..status.board import StatusBoard
from ..status.orders import Orders, Stop
from .heartbeat import Heartbeat
from .lease import LeaseUnsure
from .repair import resend_rows
from .scheduler import Scheduler
from .table_registry import TableRegistry
from .table_task import SessionContext, TableTask

__all__ = ["Session"]

log = structlog.get_logger("compactory.source")

_BEGINNING = Snapshot(0, 0)  # older than any running transaction: a reader that does not wait for it waits for none


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
        self._opened = ExitStack()  # closed by :meth:`close`

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
        with ExitStack() as opened, postgres_errors(connector.connection):
            server = opened.enter_context(closing(Server.open(connector.connection.conninfo)))
            server.mark_running(connector.name)
            found = find_plans(server, connector)
            problems = found.problems_of_start(tolerated=[Cause.LOCKED])
            if problems and (strict or not found.plans):
                raise ConfigError(problems)
            context = SessionContext(
                connector=connector,
                kafka=kafka,
                publisher=opened.enter_context(closing(publisher_of(connector, kafka, lease))),
                board=board,
                create_topics=create_topics and connector.topics.create,
                orders=orders or Orders(),
                page_bytes=page_bytes or PageBytes(),
                ends=TopicEnds(kafka),
            )
            session = cls(context, server)
            opened.callback(session._scheduler.close)
            session._registry.begin(found, strict=strict)
            session._heartbeat.open()
            session._opened = opened.pop_all()
        return session

    def close(self) -> None:
        """Let go of both sides; the next session sends again records that were not acknowledged."""
        self._registry.close()
        self._opened.close()

    def is_sweeping(self) -> bool:
        """Whether a sweep goes on, or will."""
        return any(table.cleanup.pending and not table.schedule.ailing for table in self._registry)

    def failures(self) -> list[str]:
        """The reasons why tables are not polled, or why there are none at all."""
        return self._registry.failures()

    def poll_tables(self, stop: Stop) -> bool:
        """Poll every table that is due and may have changed; whether anything was published.

        ``stop`` is heard between the pages of a poll: the next session goes on there.
        """
        self._registry.check_topics()
        with postgres_errors(self._connector.connection):
            self._take_orders()
            self._context.board.set_open_transaction(self._oldest.check())
            self._registry.check_tables()
            turn = self._scheduler.turn()
            for table in turn.unchanged:
                self._context.board.set_current(table.name, turn.looked_at)
            published = False
            for table in turn.poll:
                published |= self._poll(table, turn.looked_at, stop)
            for table in self._registry:
                if table.sweeping:
                    published |= self._attempt(table, partial(table.tend, stop)) or False
                if not table.schedule.ailing and (keys := self._context.orders.take_resend(table.name)):
                    published |= self._attempt(table, partial(self._resend_rows, table, keys)) or False
            self._heartbeat.beat()
            return published

    def wait(self, stop: Stop) -> None:
        """Wait until a writer notifies, something is due, an order comes or ``stop`` is set."""
        with postgres_errors(self._connector.connection):
            self._scheduler.rest(stop, until=self._heartbeat.due)

    def _take_orders(self) -> None:
        """Look afresh at the tables that an operator wants restarted; other orders are for the tables."""
        self._context.orders.changed.clear()
        for name in self._context.orders.take_restarts():
            self._registry.restart(name)

    def _poll(self, table: TableTask, looked_at: float, stop: Stop) -> bool:
        """Poll one table; whether anything was published, of a poll that came to its end."""
        published = self._attempt(table, lambda: None if self._waits(table) else table.drain(stop))
        if published is None:
            return False
        self._context.board.set_current(table.name, looked_at)
        self._context.board.set_remembered(table.name, table.remembered)
        self._scheduler.polled(table, published)
        return published

    def _resend_rows(self, table: TableTask, keys: list[bytes]) -> bool:
        """Send rows again that an operator asked for, as they are now; whether any were."""
        offset = table.stored(table.reader.offset, 0)
        try:
            mended = resend_rows(self._server, self._context.kafka, table.plan, table.guard, keys, offset)
        except ConfigError as error:
            log.error("rows not sent again", table=table.name, detail=str(error))
            return False
        except BaseException:  # whatever it is, the order still stands
            self._context.orders.put_back(table.name, keys)
            raise
        table.cleanup.sweeper.note(mended.records)
        log.info("rows sent again", table=table.name, keys=len(mended.records), left_alone=mended.left_alone)
        return bool(mended.records)

    def _attempt(self, table: TableTask, action: Callable[[], bool | None]) -> bool | None:
        """Do something with one table and return its result; None where it failed for this table alone."""
        try:
            return action()
        except RemovalHeld as held:
            log.debug("table held", table=table.name, removal=held.removal.id)
        except RowFailed as error:
            logged = error.log_text(name_rows=self._connector.errors.name_rows)
            table.failed(f"{table.plan.label}: {error}", f"{table.plan.label}: {logged}")
        except TableReplaced:
            self._registry.plan_again(table)
        except TopicRefused as error:
            table.failed(f"{table.plan.label}: {error}")
            self._registry.forget_unsent(table)
        except psycopg.Error as error:
            if self._server.connection.closed:
                raise
            self._refused_by_postgres(table, error)
        except CompactoryError as error:
            if self._concerns_all(error):
                raise
            table.failed(f"{table.plan.label}: {error}")
            self._registry.forget_unsent(table)
        except Exception as error:  # noqa: BLE001 - a mistake of ours about one table must not stop the others
            self._failed_unexpectedly(table, error)
        return None

    def _refused_by_postgres(self, table: TableTask, error: psycopg.Error) -> None:
        if isinstance(error, psycopg.errors.LockNotAvailable):
            table.locked(self._server.lock_holders(table.plan.oid))
        else:
            table.failed(f"{table.plan.label}: {refusal(error)}")

    def _failed_unexpectedly(self, table: TableTask, error: Exception) -> None:
        """Show that the table failed. Raises PublisherLost if the publisher can't go on."""
        detail = f"{table.plan.label}: unexpected error: {class_and_place(error)}"
        table.failed(detail)
        if not self._context.publisher.usable:
            raise PublisherLost(detail) from error
        self._registry.forget_unsent(table)

    def _concerns_all(self, error: CompactoryError) -> bool:
        """Whether no table can be published now: a connection or the lease is lost."""
        away = isinstance(error, Unreachable) and error.system in {"Kafka", "Postgres"}
        return away or isinstance(error, LeaseLost | LeaseUnsure) or not self._context.publisher.usable

    def _waits(self, table: TableTask) -> bool:
        """Whether an open transaction makes this table remember more ids than it may."""
        may = table.reader.waits_for(_BEGINNING) is not None
        xid = table.reader.waits_for(self._server.current_snapshot()) if may else None
        if xid is None:
            self._context.board.release_from_transaction(table.name)
            return False
        who = "; ".join(map(str, open_transactions(self._server, xid))) or "one that has ended meanwhile"
        detail = f"an open transaction has too many later ones to remember: {who}"
        log.error("table waits", table=table.name, detail=detail)
        self._context.board.hold_for_transaction(table.name, detail)
        return True

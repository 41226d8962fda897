"""Connections of handlers that take one: a handler runs in the transaction that completes its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from compactory.errors import LeaseLost
from compactory_sql import query

from .attempt import Attempt
from .job import Job
from .rows import Outcome, executor_of, outcomes_json

__all__ = ["AsyncConnections", "KeptConnection", "Unconnected"]

_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_TAKEN = "the lease of its executor has expired"


class Unconnected(Exception):
    """There is no connection for the handler."""


class KeptConnection:
    """The connection that a thread keeps for functions. Owned by that thread."""

    def __init__(self, conninfo: Mapping[str, Any]) -> None:
        self._conninfo = conninfo
        self._executor = 0
        self._connection: psycopg.Connection[Any] | None = None

    def call(self, attempt: Attempt, job: Job[Any], success: Outcome) -> None:
        """Call a handler in the transaction that completes its job. Raises Unconnected, LeaseLost, its error."""
        connection = self.connection(executor_of(attempt.job))
        attempt.set_connection(connection)
        pid, begun = connection.info.backend_pid, False
        try:
            with connection.transaction():
                begun = True
                attempt.handler.call(job, connection)
                _check_open(connection)
                if connection.execute(query("jobs/finish"), outcomes_json([success])).fetchone() is None:
                    raise LeaseLost(_TAKEN)
        except psycopg.Error:
            if begun:
                raise
            raise Unconnected from None  # the server had ended the session, for example while it was idle
        finally:
            attempt.set_connection(None)
            if not _is_over(connection):
                attempt.session = pid
                connection.close()

    def connection(self, executor: int) -> psycopg.Connection[Any]:
        """Return an open connection that is named after the executor. Raises Unconnected.

        The sessions of an expired executor are ended after its row was deleted. A later session sees that the row is
        gone, so a process that was frozen does not run jobs beside the executor that took them over.
        """
        if self._executor != executor or self._connection is None or self._connection.closed:
            self.close()
            try:
                connection = self._connection = psycopg.connect(_conninfo(self._conninfo, executor))
                registered = connection.execute(query("jobs/registered"), [executor]).rowcount
                connection.rollback()
            except psycopg.Error as error:
                raise Unconnected from error
            if not registered:
                self.close()
                raise Unconnected
            self._executor = executor
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class AsyncConnections:
    """The connections of coroutines, kept while idle. Owned by the thread of the event loop."""

    def __init__(self, conninfo: Mapping[str, Any]) -> None:
        self._conninfo = conninfo
        self._idle: list[tuple[int, psycopg.AsyncConnection[Any]]] = []  # by executor

    async def call(self, attempt: Attempt, job: Job[Any], success: Outcome) -> None:
        executor = executor_of(attempt.job)
        connection = await self.connection(executor)
        pid, begun = connection.info.backend_pid, False
        try:
            async with connection.transaction():
                begun = True
                await attempt.handler.function(job, connection)
                _check_open(connection)
                cursor = await connection.execute(query("jobs/finish"), outcomes_json([success]))
                if await cursor.fetchone() is None:
                    raise LeaseLost(_TAKEN)
        except psycopg.Error:
            if begun:
                raise
            raise Unconnected from None
        finally:
            if _is_over(connection):
                self._idle.append((executor, connection))
            else:
                attempt.session = pid
                await connection.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop()[1].close()

    async def connection(self, executor: int) -> psycopg.AsyncConnection[Any]:
        """Return one as `KeptConnection.connection` does. Raises Unconnected."""
        while self._idle:
            owner, connection = self._idle.pop()
            if owner == executor and not connection.closed:
                return connection
            await connection.close()
        try:
            connection = await psycopg.AsyncConnection.connect(_conninfo(self._conninfo, executor))
            registered = (await connection.execute(query("jobs/registered"), [executor])).rowcount
            await connection.rollback()
        except psycopg.Error as error:
            raise Unconnected from error
        if not registered:
            await connection.close()
            raise Unconnected
        return connection


def _check_open(connection: psycopg.BaseConnection[Any]) -> None:
    """Raise RuntimeError where the handler has ended the transaction, as its writes would not commit with the job."""
    if _is_over(connection):
        raise RuntimeError("the handler ended its job's transaction by COMMIT or ROLLBACK: use conn.transaction()")


def _is_over(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return True if the transaction is known to have ended; after a lost connection it may go on."""
    return connection.info.transaction_status is TransactionStatus.IDLE


def _conninfo(conninfo: Mapping[str, Any], executor: int) -> str:
    options = {
        "connect_timeout": 10,
        **_KEEPALIVE,
        **conninfo,
        "application_name": f"compactory-jobs {executor} handler",
    }
    return make_conninfo(**options)

"""Connections for migrations and adoption, and checks of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, scalar_row

from compactory.errors import ConfigError
from compactory_sql import query

from .jdbc_url import checked_url
from .postgres_errors import postgres_errors

__all__ = ["Connection", "autocommit", "check_server", "opened", "pooled_by_transaction", "refuse_pooling"]

Connection = psycopg.Connection[Any]

_OLDEST = 13
_PID = "SELECT pg_backend_pid()"

_POOLED = (
    "the connection goes through a pooler in transaction mode, which breaks advisory locks, settings of the session and"
    " LISTEN: connect to Postgres itself, or to a pool in session mode"
)


@contextmanager
def opened(target: str | Connection) -> Iterator[Connection]:
    """Yield the connection itself, or a new one to this address that is closed afterwards.

    Raises ConfigError for an address or a login that is refused, Unreachable.
    """
    if not isinstance(target, str):
        yield target
        return
    address = checked_url(target)
    parameters: dict[str, Any] = {"connect_timeout": 10, "application_name": "compactory-sql", **address.conninfo}
    with postgres_errors(address):
        connection = psycopg.connect(**parameters, autocommit=True)
    with connection:
        yield connection


@contextmanager
def autocommit(connection: Connection) -> Iterator[None]:
    """Switch autocommit on for the body. Raises ValueError if the connection is in a transaction."""
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise ValueError("the connection is in a transaction, and indexes are built outside of one")
    original = connection.autocommit
    connection.autocommit = True
    try:
        yield
    finally:
        if not connection.closed:
            connection.autocommit = original


def check_server(connection: Connection) -> None:
    """Raise ConfigError for a standby, a version that is too old, and a pooler in transaction mode."""
    with connection.cursor(row_factory=dict_row) as cursor:
        server = cursor.execute(query("database/server")).fetchone()
    assert server is not None
    problems: list[str] = []
    if server["standby"]:
        problems.append("this server is a standby (in recovery): connect to the primary")
    if server["version"] < _OLDEST * 10_000:
        problems.append(f"PostgreSQL {server['version'] // 10_000} is too old: {_OLDEST} or newer is needed")
    if server["pid"] != connection.info.backend_pid and pooled_by_transaction(connection, server["pid"]):
        problems.append(_POOLED)
    if problems:
        raise ConfigError(problems)


def refuse_pooling(connection: Connection) -> None:
    """Raise ConfigError if the connection goes through a pooler in transaction mode.

    Poolers invent the pid that the client sees. If it is the real pid, there is no pooler, and nothing else is asked.
    """
    row = connection.execute(_PID).fetchone()
    if row is not None and row[0] != connection.info.backend_pid and pooled_by_transaction(connection, row[0]):
        raise ConfigError(_POOLED)


def pooled_by_transaction(connection: Connection, backend: int) -> bool:
    """Return True if a second connection takes over the backend of this idle connection.

    In session mode a backend belongs to one client until the client disconnects.
    """
    information = connection.info
    parameters: dict[str, Any] = {**information.get_parameters(), "password": information.password or None}
    try:
        with psycopg.connect(**parameters, autocommit=True) as second:
            second_pid = second.cursor(row_factory=scalar_row).execute(_PID).fetchone()
            pid = connection.cursor(row_factory=scalar_row).execute(_PID).fetchone()
            return bool(second_pid == backend or pid != backend)
    except psycopg.OperationalError:
        return False  # a pool for one client: the mode is unknown

"""The connection of the caller. Messages and jobs are written in its transaction, which is never committed here.

The caller has a psycopg connection, or an SQLAlchemy session or connection on psycopg, synchronous or asynchronous.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Any, LiteralString

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import scalar_row

from compactory.errors import ConfigError, WriteRefused

__all__ = ["driver", "first", "is_async", "write"]

_BEGIN = "SELECT 1"  # starts SQLAlchemy's transaction: else SQLAlchemy would not commit it


def is_async(conn: Any) -> bool:
    """Return True if calls on this connection must be awaited."""
    if isinstance(conn, psycopg.Connection):
        return False
    return (
        isinstance(conn, psycopg.AsyncConnection) or hasattr(conn, "sync_session") or hasattr(conn, "sync_connection")
    )


def driver(conn: Any, call: str, written: str) -> psycopg.Connection[Any]:
    """Return the psycopg connection of ``conn``. Errors name the function ``call`` and the thing ``written``.

    Raises ConfigError for another kind of connection, WriteRefused in autocommit without a transaction.
    """
    inner = conn
    if not isinstance(inner, psycopg.Connection):
        if hasattr(inner, "get_bind"):  # a session
            inner = inner.connection()
        if hasattr(inner, "dialect"):  # a connection of SQLAlchemy
            if not inner.in_transaction():
                inner.exec_driver_sql(_BEGIN)
            inner = inner.connection.driver_connection
        if not isinstance(inner, psycopg.Connection):
            raise ConfigError(_not_psycopg(conn, call))
    _refuse_autocommit(inner, call, written)
    return inner


def write(conn: Any, call: str, written: str, part: str, statement: LiteralString, parameters: Any) -> Any:
    """Run a statement in the transaction of ``conn``; return the list of ids, an awaitable if ``conn`` is asynchronous.

    Raises as :func:`driver` does, ConfigError if the ``part`` is not installed or the role has no rights.
    """
    if is_async(conn):
        return _write_async(conn, call, written, part, statement, parameters)
    inner = driver(conn, call, written)
    with _Remedies(inner, part):
        return inner.cursor(row_factory=scalar_row).execute(statement, parameters).fetchall()


def first(ids: Any) -> Any:
    """Return the first id of the result of :func:`write`, or an awaitable of it."""
    return ids[0] if type(ids) is list else _first(ids)


async def _write_async(
    conn: Any, call: str, written: str, part: str, statement: LiteralString, parameters: Any
) -> list[int]:
    inner = await _async_driver(conn, call, written)
    with _Remedies(inner, part):
        cursor = await inner.cursor(row_factory=scalar_row).execute(statement, parameters)
        return await cursor.fetchall()


async def _first(ids: Awaitable[list[int]]) -> int:
    return (await ids)[0]


async def _async_driver(conn: Any, call: str, written: str) -> psycopg.AsyncConnection[Any]:
    """Return the asynchronous psycopg connection of ``conn``. Raises as :func:`driver` does."""
    inner = conn
    if hasattr(inner, "sync_session"):
        inner = await inner.connection()
    if hasattr(inner, "sync_connection"):
        if not inner.in_transaction():
            await inner.exec_driver_sql(_BEGIN)
        inner = (await inner.get_raw_connection()).driver_connection
    if not isinstance(inner, psycopg.AsyncConnection):
        raise ConfigError(_not_psycopg(conn, call))
    _refuse_autocommit(inner, call, written)
    return inner


class _Remedies:
    """A context manager that raises ConfigError with the remedy if a part is not installed, or the role has no rights.

    A class, because a generator would cost a publisher half as much as its statement.
    """

    __slots__ = ("_inner", "_part")

    def __init__(self, inner: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], part: str) -> None:
        self._inner = inner
        self._part = part

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        part, info = self._part, self._inner.info
        place = f"database {info.dbname!r}"
        if isinstance(error, psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction):
            raise ConfigError(f"{place} has no {part}, or an older one: `compactory sql install` adds it") from error
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            reason = f"role {info.user!r} may not use the {part} of {place}: {error.diag.message_primary}"
            raise ConfigError(
                f"{reason}; `compactory sql roles --for {part}` makes a role with the rights: grant it"
            ) from error


def _not_psycopg(conn: Any, call: str) -> str:
    return (
        f"{call} needs a connection of psycopg, or a session or connection of SQLAlchemy on psycopg"
        f" (postgresql+psycopg://…), not {type(conn).__module__}.{type(conn).__qualname__}"
    )


def _refuse_autocommit(conn: Any, call: str, written: str) -> None:
    if conn.autocommit and conn.info.transaction_status is TransactionStatus.IDLE:
        raise WriteRefused(
            f"the connection is in autocommit and in no transaction, so the {written} would commit without your own"
            f" writes: call {call} within `with conn.transaction():`"
        )

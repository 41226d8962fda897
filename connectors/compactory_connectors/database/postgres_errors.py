"""Maps the driver's errors to ours: outages, wrong settings and refusals, without values of rows or secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from compactory.errors import CompactoryError, ConfigError, Unreachable

from .jdbc_url import Connection

__all__ = ["postgres_errors", "refusal"]

_LOST = ("08", "57P", "25P03", "25P04")  # connection exceptions, and ends by the server, an administrator or a time-out

_READ_ONLY = "25006"  # by default_transaction_read_only, as around a failover

_DATA = ("22", "42601")  # data exceptions, and syntax errors, which quote the text around them
_QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')

_REFUSED = re.compile(
    r'FATAL: (role ".*" (does not exist|is not permitted to log in)|.*authentication failed)'
    r"|pg_hba\.conf|no password supplied"
)
"""Of a login; libpq 18 does not tell the SQLSTATE of a connection that failed, so most of this is English alone."""


@contextmanager
def postgres_errors(connection: Connection) -> Iterator[None]:
    """Map the driver's errors to ours with the cause kept.

    ConfigError for a refused login or a missing database, Unreachable when the connection failed or was lost,
    CompactoryError for a statement that the server refuses. No text repeats a password.
    """
    try:
        yield
    except psycopg.Error as error:
        place = f"Postgres at {connection.server}"
        reason = refusal(error)
        if error.sqlstate is None and _REFUSED.search(reason):
            raise ConfigError(f"{place} refused the login: {reason}") from error
        if error.sqlstate == "42501" or "permission denied" in reason:
            remedy = "compactory sql roles gives each component its rights"
            raise ConfigError(f"{place} refused: {reason}; {remedy}") from error
        if "database" in reason and "does not exist" in reason:
            raise ConfigError(f"{place}: {reason}; check its name in the URL") from error
        ended = (error.sqlstate or "").startswith(_LOST)
        away = ended or error.sqlstate == _READ_ONLY
        if away or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            lost = ended or not error.sqlstate
            raise Unreachable(
                "Postgres", f"{place} {'was not reached' if lost else 'can not serve'}: {reason}"
            ) from error
        raise CompactoryError(f"{place} refused a statement: {reason}") from error


def refusal(error: psycopg.Error) -> str:
    """Why the server refuses a statement: its message alone, without the statement and without values of rows."""
    if error.sqlstate is None:  # of the driver: nothing was asked yet, or the connection was lost
        return " ".join(str(error).split())
    text = error.diag.message_primary or str(error).partition("\n")[0]
    return f"{_QUOTED.sub('…', text) if error.sqlstate.startswith(_DATA) else text} (SQLSTATE {error.sqlstate})"

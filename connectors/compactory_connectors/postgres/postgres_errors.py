"""Maps psycopg's errors to the errors of Compactory: outages, wrong settings, refusals. No values, no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from compactory.errors import CompactoryError, ConfigError, Unreachable

from .jdbc_url import Connection

__all__ = ["postgres_errors", "refusal", "refusal_text"]

_LOST = ("08", "57P", "25P03", "25P04")  # connection exceptions, and ends by the server, an administrator or a time-out
_LOGIN = "28"
_NO_DATABASE = "3D000"
_NO_RIGHT = "42501"
_READ_ONLY = "25006"  # by default_transaction_read_only, as around a failover

_DATA = ("22", "42601")  # data exceptions, and syntax errors, which quote the text around them
_QUOTE = "[\"'«»„“”‚‘’]"  # servers quote in the language of lc_messages
_QUOTED = re.compile(f"{_QUOTE}.*{_QUOTE}", re.DOTALL)  # from the first to the last: the text may hold quotes itself

_REFUSED_CONNECTIONS = (
    (
        _LOGIN,
        re.compile(
            r'FATAL: (role ".*" (does not exist|is not permitted to log in)|.*authentication failed)'
            r"|pg_hba\.conf|no password supplied"
        ),
    ),
    (_NO_DATABASE, re.compile(r'FATAL: database ".*" does not exist')),
    (_NO_RIGHT, re.compile(r"FATAL: permission denied for database")),
)
"""libpq 18 has no SQLSTATE for a connection that failed, so its message decides. Most messages are in English only."""


@contextmanager
def postgres_errors(connection: Connection) -> Iterator[None]:
    """Raise errors of Compactory in place of psycopg's, which become the cause.

    Raises ConfigError for a refused login or a missing database, Unreachable if the connection failed or was lost,
    CompactoryError for a statement that the server refuses. No message has a password.
    """
    try:
        yield
    except psycopg.Error as error:
        place = f"Postgres at {connection.server}"
        reason, sqlstate = refusal(error), _sqlstate(error)
        if sqlstate.startswith(_LOGIN):
            raise ConfigError(f"{place} refused the login: {reason}") from error
        if sqlstate == _NO_RIGHT:
            remedy = "compactory sql roles gives each component its rights"
            raise ConfigError(f"{place} refused: {reason}; {remedy}") from error
        if sqlstate == _NO_DATABASE:
            raise ConfigError(f"{place}: {reason}; check its name in the URL") from error
        ended = sqlstate.startswith(_LOST)
        is_unreachable = ended or sqlstate == _READ_ONLY
        if is_unreachable or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            lost = ended or not sqlstate
            raise Unreachable(
                "Postgres", f"{place} {'was not reached' if lost else 'can not serve'}: {reason}"
            ) from error
        raise CompactoryError(f"{place} refused a statement: {reason}") from error


def refusal(error: psycopg.Error) -> str:
    """Return the server's message alone, without the statement and without values of rows."""
    if error.sqlstate is None:  # of the driver: nothing was asked yet, or the connection was lost
        return " ".join(str(error).split())
    return refusal_text(error.sqlstate, error.diag.message_primary or str(error).partition("\n")[0])


def refusal_text(sqlstate: str, message: str, *, masked: bool = False) -> str:
    """Return a server's message with its SQLSTATE.

    Pieces of the statement that the message quotes are left out where they may be values, and with ``masked`` always.
    """
    hidden = masked or sqlstate.startswith(_DATA)
    return f"{_QUOTED.sub('…', message) if hidden else message} (SQLSTATE {sqlstate})"


def _sqlstate(error: psycopg.Error) -> str:
    """Return the SQLSTATE of an error; for a failed connection the one that fits its message, or an empty text."""
    if error.sqlstate is not None:
        return error.sqlstate
    reason = refusal(error)
    return next((sqlstate for sqlstate, text in _REFUSED_CONNECTIONS if text.search(reason)), "")

"""A connection to Postgres that doesn't wait for a server that has fallen silent.

TCP's own keep-alives find a peer that is gone. They do not find a server whose host acknowledges packets and does
nothing else, nor a proxy that keeps this side open after the other one was lost: psycopg would wait for ever. A long
query is silent as well, so silence alone proves nothing: after some seconds of it the server is asked by another
connection whether it still works on what it was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any, Self

import psycopg
from psycopg.waiting import Ready, Wait

from compactory_sql import query

__all__ = ["WatchedConnection", "connect"]

FORMATS = {
    "client_encoding": "UTF8",
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",  # the shortest digits that read back the same
    "bytea_output": "hex",
    "lc_monetary": "C",
    "array_nulls": "on",  # else NULL within an array that we send is a text
}
"""The text formats that we read and write."""

LIMITS = {
    "lock_timeout": "100ms",  # a locked table must not keep the others waiting; it is tried again
    "statement_timeout": "0",  # a first load sorts a whole table in one statement
    "idle_in_transaction_session_timeout": "0",  # a page is published within its snapshot; that has a limit of its own
    "transaction_timeout": "0",
    "idle_session_timeout": "0",  # a source that sleeps is idle
    "row_security": "off",  # an error, as changes that a policy hides would be taken for seen, and rows for removed
    "tcp_keepalives_idle": "10",  # the server lets go of the snapshot and locks of a source whose host is gone
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""In place of the settings of role and database; those in ``options`` of connection.url stay as they are there."""

_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_CHOICE = ("target_session_attrs", "load_balance_hosts")  # which of several hosts; a probe goes to the one that it was

_SENT = 2
"""Times that a pipeline asks whether it can send a statement. It can: libpq keeps what the socket does not take.

Each look at the socket gives other threads the interpreter; beside many that cost more than the statements.
"""


_SAID = ":  "
"""The sign behind FATAL, in any language, where the server refuses a connection (libpq 18)."""


class WatchedConnection(psycopg.Connection[Any]):
    """Raises psycopg.OperationalError, and is closed then, when the server has stopped working on a statement.

    That is found out within ``PATIENCE`` + 2 · ``PROBE`` seconds. Owned by one thread, as its probes are.
    """

    PATIENCE = 10.0
    """Seconds of silence after which the server is asked."""
    PROBE = 5
    """Seconds that it has for each of connection and answer."""

    _place: Mapping[str, Any]
    _pid: int | None = None
    """The backend's own word: of a connection through a pool, libpq knows another."""

    @classmethod
    def to(cls, options: Mapping[str, Any]) -> Self:
        """Connect, in autocommit. Raises psycopg.Error."""
        connection = cls.connect(**options, autocommit=True, prepare_threshold=None)
        kept = {name: value for name, value in options.items() if name not in _CHOICE}
        info = connection.info
        connection._place = {**kept, "host": info.host, "port": info.port, "hostaddr": info.hostaddr}  # noqa: SLF001
        return connection

    def settle(self, formats: Mapping[str, str], limits: Mapping[str, str]) -> None:
        """Set the session's settings; a limit that the connection was made with stays as it is."""
        settings = {**formats, **limits}
        given = {"names": [*settings], "values": [*settings.values()], "formats": [*formats]}
        row = self.execute(query("database/settings"), given).fetchone()
        self._pid = row[0] if row is not None else None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server as psycopg does."""
        return super().wait(self._watched(gen), *args, **kwargs)

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """Pass on the waits of ``gen``; psycopg wakes up some times a second even where nothing comes."""
        silent_since: float | None = None
        try:
            wanted = next(gen)
            for _ in range(_SENT):
                if wanted == Wait.RW and self.pgconn.pipeline_status:
                    wanted = gen.send(Ready.W)
            while True:
                ready = yield wanted
                if ready:
                    silent_since = None
                elif silent_since is None:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since >= self.PATIENCE:
                    self._ask()
                    silent_since = None
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _ask(self) -> None:
        """Raise OperationalError unless the server is at work on the statement."""
        try:
            with _Probe.to({**self._place, "connect_timeout": self.PROBE}) as probe:
                row = probe.execute(query("database/at_work"), [self._pid]).fetchone()
        except psycopg.OperationalError as error:
            if _SAID in str(error):  # it answers, if only that it takes no more connections
                return
            self._give_up(f"the server fell silent: {' '.join(str(error).split())}")
        else:
            if row is None:
                self._give_up("the server knows nothing of this connection any more")
            elif not row[0]:
                self._give_up("the server's answer was lost on the way")

    def _give_up(self, reason: str) -> None:
        self.close()
        raise psycopg.OperationalError(reason)


class _Probe(WatchedConnection):
    PATIENCE = 5.0

    def _ask(self) -> None:
        self._give_up(f"no answer within {self.PATIENCE:g} s")


def connect(conninfo: Mapping[str, Any]) -> WatchedConnection:
    """A connection in autocommit whose text formats are those that the converters read. Raises psycopg.Error."""
    options = {"connect_timeout": 10, "application_name": "compactory-source", **_KEEPALIVE, **conninfo}
    connection = WatchedConnection.to(options)
    try:
        connection.settle(FORMATS, LIMITS)
    except BaseException:
        connection.close()
        raise
    return connection

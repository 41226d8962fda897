"""A connection to Postgres that does not wait for ever for a server that does not answer.

TCP keep-alives find a host that is gone. They do not find a server process that hangs, nor a proxy that keeps its side
open after it has lost the server: psycopg would wait for ever. A long query sends nothing either. So after some seconds
without data a second connection asks the server if it still works on the statement.
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
"""Replace the settings of role and database. Settings in ``options`` of connection.url are kept."""

_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_CHOICE = ("target_session_attrs", "load_balance_hosts")  # choose among hosts; a probe uses the same host

_PIPELINE_SENDS = 2
"""How many waits of a pipeline are answered at once with "ready to send": libpq buffers what the socket does not take.

Each wait for the socket releases the interpreter lock; beside busy threads that costs more than the statements.
"""

_REFUSAL_MARK = ":  "
"""libpq 18 has no SQLSTATE for a refused connection. In every language its message has this mark after FATAL."""


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that raises psycopg.OperationalError, and is closed, when the server stops working on a statement.

    That takes at most ``PATIENCE`` + 2 · ``PROBE`` seconds. Owned by one thread.
    """

    PATIENCE = 10.0
    """Seconds without data after which the server is asked."""
    PROBE = 5
    """Seconds for the probe's connection, and for its answer."""

    _address: Mapping[str, Any]
    _pid: int | None = None
    """The pid that the server reports: through a pooler, libpq has another one."""

    @classmethod
    def to(cls, options: Mapping[str, Any]) -> Self:
        """Connect, in autocommit. Raises psycopg.Error."""
        connection = cls.connect(**options, autocommit=True, prepare_threshold=None)
        on_same_host = {name: value for name, value in options.items() if name not in _CHOICE}
        info = connection.info
        connection._address = {**on_same_host, "host": info.host, "port": info.port, "hostaddr": info.hostaddr}  # noqa: SLF001
        return connection

    def settle(self, formats: Mapping[str, str], limits: Mapping[str, str]) -> None:
        """Set formats and limits of the session. A limit from the connection's own options is kept."""
        settings = {**formats, **limits}
        parameters = {"names": [*settings], "values": [*settings.values()], "formats": [*formats]}
        row = self.execute(query("database/settings"), parameters).fetchone()
        self._pid = row[0] if row is not None else None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server as psycopg does."""
        return super().wait(self._watched(gen), *args, **kwargs)

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """Pass on the waits of ``gen``. psycopg wakes several times a second, also without data."""
        silent_since: float | None = None
        try:
            awaited = next(gen)
            for _ in range(_PIPELINE_SENDS):
                if awaited == Wait.RW and self.pgconn.pipeline_status:
                    awaited = gen.send(Ready.W)
            while True:
                ready = yield awaited
                if ready:
                    silent_since = None
                elif silent_since is None:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since >= self.PATIENCE:
                    self._check_server()
                    silent_since = None
                awaited = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _check_server(self) -> None:
        """Raise OperationalError unless the server works on the statement."""
        try:
            with _Probe.to({**self._address, "connect_timeout": self.PROBE}) as probe:
                row = probe.execute(query("database/at_work"), [self._pid]).fetchone()
        except psycopg.OperationalError as error:
            if _REFUSAL_MARK in str(error):  # the server answers, if only that it accepts no more connections
                return
            self._give_up(f"the server does not answer: {' '.join(str(error).split())}")
        else:
            if row is None:
                self._give_up("the server has ended this connection")
            elif not row[0]:
                self._give_up("the server's answer was lost in the network")

    def _give_up(self, reason: str) -> None:
        self.close()
        raise psycopg.OperationalError(reason)


class _Probe(WatchedConnection):
    PATIENCE = 5.0

    def _check_server(self) -> None:
        self._give_up(f"no answer within {self.PATIENCE:g} s")


def connect(conninfo: Mapping[str, Any]) -> WatchedConnection:
    """Return a connection in autocommit whose text formats are those that the converters read. Raises psycopg.Error."""
    options = {"connect_timeout": 10, "application_name": "compactory-source", **_KEEPALIVE, **conninfo}
    connection = WatchedConnection.to(options)
    try:
        connection.settle(FORMATS, LIMITS)
    except BaseException:
        connection.close()
        raise
    return connection

"""The settings of our sessions, whatever role and database have, and the probes of silent ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, nullcontext

import psycopg
import pytest

from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_connectors.postgres.watched_connection import WatchedConnection, _Probe, connect


@pytest.mark.parametrize(
    ("said", "closed"),
    [
        ("FATAL:  sorry, too many clients already", False),
        ("VAZHNO:  slishkom mnogo podklyuchenij", False),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", True),
    ],
)
def test_a_server_that_refuses_a_probe_in_any_language_is_not_silent(
    database: str, monkeypatch: pytest.MonkeyPatch, said: str, closed: bool
) -> None:
    def refused(_: object) -> None:
        raise psycopg.OperationalError(f'connection to server at "h", port 5432 failed: {said}\n')

    monkeypatch.setattr(_Probe, "to", refused)
    with connect(checked_url(database).conninfo) as connection:
        with pytest.raises(psycopg.OperationalError) if closed else nullcontext():
            connection._check_server()
        assert connection.closed == closed


def test_a_connection_is_closed_where_its_settings_take_too_long(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the role has a statement_timeout, and the machine is busy."""
    made: list[WatchedConnection] = []

    def slow(connection: WatchedConnection, *_: Mapping[str, str]) -> None:
        made.append(connection)
        connection.execute("SET statement_timeout = '10ms'")
        connection.execute("SELECT pg_sleep(5)")

    monkeypatch.setattr(WatchedConnection, "settle", slow)
    with pytest.raises(psycopg.errors.QueryCanceled):
        connect({"conninfo": database})
    assert [connection.closed for connection in made] == [True]


def test_null_within_an_array_is_no_text(database: str) -> None:
    """Executors enqueue jobs by arrays: with ``array_nulls=off`` a job without a group was in the group NULL."""
    with closing(connect({"conninfo": database, "options": "-c array_nulls=off"})) as sql:
        assert sql.execute("SELECT %s::text[]", [["a", None]]).fetchone() == (["a", None],)

"""Refusals of a login that need a server with an identity provider, or a pooler, to be met."""

from __future__ import annotations

import psycopg
import pytest

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.schema import install


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  LDAP authentication failed for user "a"',
        'FATAL:  certificate authentication failed for user "a"',
        "FATAL:  SASL authentication failed",
        "fe_sendauth: no password supplied",
        'FATAL:  pg_hba.conf rejects connection for host "::1", user "a", database "d", no encryption',
        'VAZHNO:  v pg_hba.conf net zapisi dlya komp`yutera "::1", pol`zovatelya "a", bazy` "d", net shifrovaniya',
    ],
)
def test_a_refused_login_is_no_outage(said: str) -> None:
    with pytest.raises(ConfigError, match="refused the login"), postgres_errors(checked_url("postgresql://h/d")):
        raise psycopg.OperationalError(f'connection to server at "h", port 5432 failed: {said}\n')


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3cr%zzet@localhost/d",
        "postgresql://app:s3cr/et@localhost/d",
        "host=localhost password=x s3cret",
        "host=localhost password='s3cret",
        "host=localhost s3cret=x",
    ],
)
def test_an_address_that_libpq_refuses_is_not_repeated(url: str) -> None:
    """libpq names the piece that it can't read, which may be one of a password."""
    with pytest.raises(ConfigError, match="not a valid Postgres URL or DSN") as refused:
        install(url)
    assert "s3cr" not in str(refused.value)


def test_an_address_where_nothing_listens_is_an_outage() -> None:
    with pytest.raises(Unreachable, match="was not reached"):
        install("postgresql://app:s3cret@127.0.0.1:1/d")


@pytest.mark.parametrize(
    "statement",
    ["SELECT FROM customer_database", "SELECT database_id", "SELECT nobody.database()", "SELECT 1::database"],
)
def test_a_name_that_only_sounds_like_a_database_is_a_statement_refused(database: str, statement: str) -> None:
    raises = pytest.raises(CompactoryError, match="does not exist")
    with psycopg.connect(database) as connection, raises as refused, postgres_errors(checked_url(database)):
        connection.execute(statement.encode())
    assert not isinstance(refused.value, ConfigError)
    assert "check its name" not in str(refused.value)


def test_a_database_that_is_not_there_is_a_wrong_name(database: str) -> None:
    wrong = checked_url(f"{database}x")
    with pytest.raises(ConfigError, match="does not exist; check its name in the URL"), postgres_errors(wrong):
        psycopg.connect(**wrong.conninfo)


@pytest.mark.parametrize("statement", ["SELECT 'hunter2'::int", "SELECT 'a\"hunter2'::int", "SELECT 1 hunter2 hunter2"])
def test_a_statement_that_is_refused_is_not_repeated(database: str, statement: str) -> None:
    raises = pytest.raises(CompactoryError, match="SQLSTATE")
    with psycopg.connect(database) as connection, raises as refused, postgres_errors(checked_url(database)):
        connection.execute(statement.encode())
    assert "hunter2" not in str(refused.value)

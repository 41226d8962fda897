"""JDBC URLs, libpq URLs and DSNs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.postgres.jdbc_url import parse_url

SECRET = "pa55-w0rd"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("jdbc:postgresql://db:5433/shop", {"host": "db", "port": "5433", "dbname": "shop"}),
        ("jdbc:postgresql://db/", {"host": "db", "port": "5432"}),
        ("jdbc:postgresql://db", {"host": "db", "port": "5432"}),
        ("jdbc:postgresql:shop", {"host": "localhost", "port": "5432", "dbname": "shop"}),
        ("jdbc:postgresql:/", {"host": "localhost", "port": "5432"}),
        ("jdbc:postgresql:///shop", {"host": "localhost", "port": "5432", "dbname": "shop"}),
        ("jdbc:postgresql://a:1,b,[::1]:3/x", {"host": "a,b,::1", "port": "1,5432,3", "dbname": "x"}),
        ("jdbc:postgresql://h/a%20b?user=u%40x&password=p%26q", {
            "host": "h", "port": "5432", "dbname": "a b", "user": "u@x", "password": "p&q",
        }),
        ("jdbc:postgresql://h/d?ssl=true&sslrootcert=/c.pem", {
            "host": "h", "port": "5432", "dbname": "d", "sslmode": "verify-full", "sslrootcert": "/c.pem",
        }),
        ("jdbc:postgresql://h/d?sslmode=require&ssl=true", {
            "host": "h", "port": "5432", "dbname": "d", "sslmode": "require",
        }),
        ("jdbc:postgresql://h/d?ssl=true&sslfactory=org.postgresql.ssl.NonValidatingFactory", {
            "host": "h", "port": "5432", "dbname": "d", "sslmode": "require",
        }),
        ("jdbc:postgresql://h/d?currentSchema=ref,public&options=-c%20statement_timeout=9", {
            "host": "h", "port": "5432", "dbname": "d",
            "options": "-c search_path=ref,public -c statement_timeout=9",
        }),
        ("jdbc:postgresql://h/d?options=-c%20a=b&currentSchema=my%20schema", {
            "host": "h", "port": "5432", "dbname": "d", "options": "-c a=b -c search_path=my\\ schema",
        }),
        ("jdbc:postgresql://a,b/d?targetServerType=primary&loadBalanceHosts=true&tcpKeepAlive=true", {
            "host": "a,b", "port": "5432,5432", "dbname": "d", "target_session_attrs": "primary",
            "load_balance_hosts": "random", "keepalives": "1",
        }),
        ("jdbc:postgresql://h/d?ApplicationName=app&connectTimeout=7&prepareThreshold=0&stringtype=unspecified", {
            "host": "h", "port": "5432", "dbname": "d", "application_name": "app", "connect_timeout": "7",
        }),
        ("postgresql://u:p@h:1/d?sslmode=require", {
            "user": "u", "password": "p", "host": "h", "port": "1", "dbname": "d", "sslmode": "require",
        }),
        ("host=h dbname=d", {"host": "h", "dbname": "d"}),
    ],
)  # fmt: skip
def test_urls(url: str, expected: dict[str, str]) -> None:
    assert dict(parse_url(url).conninfo) == expected


def test_user_and_password_beside_the_url_count_where_it_has_none() -> None:
    connection = parse_url("jdbc:postgresql://h/d?user=in-url", "beside", SECRET)
    assert (connection.conninfo["user"], connection.conninfo["password"]) == ("in-url", SECRET)


@pytest.mark.parametrize(
    ("url", "problems"),
    [
        (
            "jdbc:mysql://h/d",
            [
                (
                    "jdbc:mysql is not a Postgres URL; only Postgres is supported; "
                    "expected jdbc:postgresql://HOST[:PORT][,HOST…]/DATABASE[?NAME=VALUE&…] or postgresql://…"
                )
            ],
        ),
        (
            "nonsense",
            [
                (
                    "not a Postgres URL; "
                    "expected jdbc:postgresql://HOST[:PORT][,HOST…]/DATABASE[?NAME=VALUE&…] or postgresql://…"
                )
            ],
        ),
        (
            f"jdbc:postgresql://u:{SECRET}@h/d",
            [
                (
                    "a JDBC URL has no user:password@ part; "
                    "give connection.user and connection.password, or ?user=…&password=…"
                )
            ],
        ),
        (
            f"jdbc:postgresql://h:{SECRET}/d",
            [
                (
                    "a port must be a number from 1 to 65535; "
                    "expected jdbc:postgresql://HOST[:PORT][,HOST…]/DATABASE[?NAME=VALUE&…] or postgresql://…"
                )
            ],
        ),
        (
            f"jdbc:postgresql://h/d?pasword={SECRET}&ssl=maybe&targetServerType=slave&readOnly=true&zzzz=1",
            [
                "unknown URL parameter pasword; did you mean password?",
                "unknown URL parameter zzzz",
                "URL parameter ssl: must be true or false",
                (
                    "URL parameter targetServerType: slave asks for a standby, "
                    "whose snapshots list no running transactions; use primary"
                ),
                "URL parameter readOnly: a read-only session holds no lease; leave it out",
            ],
        ),
        (
            f"postgresql://u:{SECRET}/x@h/d",
            [
                (
                    "not a valid Postgres URL or DSN; percent-encode @ : / ? # % in user and password, "
                    "or give them as connection.user and connection.password"
                )
            ],
        ),
    ],
)
def test_wrong_urls_are_explained_without_their_secrets(url: str, problems: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_url(url)
    assert str(caught.value).splitlines() == problems
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_nothing_that_is_printed_shows_the_password() -> None:
    connection = parse_url(f"jdbc:postgresql://a:1,b/d?password={SECRET}", "user")
    assert str(connection) == connection.server == "a:1,b:5432/d"
    assert SECRET not in f"{connection!r} {connection} {connection!s}"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.text(st.characters(codec="utf-8")))
def test_any_encoded_password_comes_back(password: str, database: str) -> None:
    from urllib.parse import quote

    url = f"jdbc:postgresql://h/{quote(database, safe='')}?password={quote(password, safe='')}"
    conninfo = parse_url(url).conninfo
    assert (conninfo["password"], conninfo.get("dbname", "")) == (password, database)


@given(st.text(max_size=40))
def test_any_url_is_read_or_refused(rest: str) -> None:
    for prefix in ("jdbc:postgresql:", "jdbc:postgresql://", "jdbc:"):
        with contextlib.suppress(ValueError):
            assert parse_url(prefix + rest).server

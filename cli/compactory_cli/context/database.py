"""Connects commands to the database. Errors do not show the password."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from .session import begin

if TYPE_CHECKING:
    import psycopg

__all__ = ["connected"]


@contextmanager
def connected(
    connect: Callable[[Mapping[str, Any], str], psycopg.Connection[Any]] | None = None,
) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection in autocommit to the configured database, opened by ``connect`` if given."""
    from compactory_connectors.postgres.postgres_errors import postgres_errors

    postgres = begin().postgres()
    with postgres_errors(postgres), closing((connect or _connect)(postgres.conninfo, "command")) as connection:
        yield connection


def _connect(conninfo: Mapping[str, Any], _purpose: str) -> psycopg.Connection[Any]:
    import psycopg

    parameters: dict[str, Any] = {"connect_timeout": 10, "application_name": "compactory-sql", **conninfo}
    return psycopg.connect(**parameters, autocommit=True)

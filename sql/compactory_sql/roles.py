"""Grants that give each component the rights that it needs and no others. The server quotes the names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import LiteralString

from compactory_sql.loader import statements
from compactory_sql.naming import literal

__all__ = ["GrantedTable", "Grantee", "grants", "jobs_grants", "outbox_grants", "sink_grants"]


@dataclass(frozen=True, kw_only=True)
class Grantee:
    """A role: its name, and the name quoted where SQL needs it."""

    name: str
    sql: str


@dataclass(frozen=True, kw_only=True)
class GrantedTable:
    """A table to grant rights on; all names are quoted. ``sequences``: those of its serial columns."""

    schema: str
    name: str
    owner: str
    sequences: tuple[str, ...]


def grants(
    database: str,
    tables: Iterable[GrantedTable],
    *,
    owner: Grantee,
    source: Grantee,
    writer: Grantee,
    schema_owner: str | None,
) -> tuple[LiteralString, ...]:
    """Return the grants for the roles of a source, in order. Running them again changes nothing.

    ``owner`` installs and adopts, ``source`` polls, ``writer`` is the application that maintains the tables.
    ``schema_owner`` is the quoted name of the owner of schema ``compactory``, None before that exists.
    """
    tables = list(tables)
    texts = _roles(database, owner, source, writer)
    texts += statements("role_install", database=database, owner=owner.sql)
    owners = {table.owner for table in tables} | ({schema_owner} if schema_owner else set())
    for member in sorted(owners - {owner.sql}):
        texts += statements("role_adopt", member=member, owner=owner.sql)
    for table in tables:
        texts += statements("role_source", schema=table.schema, table=table.name, source=source.sql)
        texts += statements("role_writer", schema=table.schema, table=table.name, writer=writer.sql)
        for sequence in table.sequences:
            texts += statements("role_sequence", sequence=sequence, writer=writer.sql)
    texts += statements("role_log", source=source.sql)
    texts += statements("role_loads", writer=writer.sql)
    return tuple(texts)


def outbox_grants(database: str, *, publisher: Grantee, relay: Grantee) -> tuple[LiteralString, ...]:
    """Return the grants for services that publish and for relays. Running them again changes nothing."""
    rights = statements("role_outbox", publisher=publisher.sql, relay=relay.sql)
    return (*_roles(database, publisher, relay), *rights)


def jobs_grants(database: str, *, enqueuer: Grantee, executor: Grantee) -> tuple[LiteralString, ...]:
    """Return the grants for services that enqueue and for executors. Running them again changes nothing."""
    rights = statements("role_jobs", enqueuer=enqueuer.sql, executor=executor.sql)
    return (*_roles(database, enqueuer, executor), *rights)


def sink_grants(database: str, tables: Iterable[GrantedTable], *, sink: Grantee) -> tuple[LiteralString, ...]:
    """Return the grants for a sink that writes these tables. Running them again changes nothing."""
    texts = _roles(database, sink)
    texts += statements("role_sink", database=database, sink=sink.sql)
    for table in tables:
        texts += statements("role_sink_table", schema=table.schema, table=table.name, sink=sink.sql)
    return tuple(texts)


def _roles(database: str, *roles: Grantee) -> list[LiteralString]:
    """Return statements that create the roles and let them connect."""
    return [
        text
        for role in roles
        for text in statements("role", role=role.sql, literal=literal(role.name), database=database)
    ]

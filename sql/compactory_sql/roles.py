"""Grants that give each component its rights and no others. Pure rendering; names come quoted from the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """A table that grants are about, all names quoted. ``sequences`` are those of its serial columns."""

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
    """Return the statements, in order. Running them again changes nothing.

    ``owner`` installs and adopts, ``source`` polls, ``writer`` is the application that maintains the tables.
    ``schema_owner`` owns schema ``compactory``, None before that is there; its name is quoted.
    """
    return tuple(_statements(database, list(tables), owner, source, writer, schema_owner))


def outbox_grants(database: str, *, publisher: Grantee, relay: Grantee) -> tuple[LiteralString, ...]:
    """The statements, in order, for services that publish and for relays. Running them again changes nothing."""
    return tuple(_outbox_statements(database, publisher, relay))


def jobs_grants(database: str, *, enqueuer: Grantee, executor: Grantee) -> tuple[LiteralString, ...]:
    """The statements, in order, for services that enqueue and for executors. Running them again changes nothing."""
    return tuple(_jobs_statements(database, enqueuer, executor))


def _jobs_statements(database: str, enqueuer: Grantee, executor: Grantee) -> Iterator[LiteralString]:
    for role in (enqueuer, executor):
        yield from statements("role", role=role.sql, literal=literal(role.name), database=database)
    yield from statements("role_jobs", enqueuer=enqueuer.sql, executor=executor.sql)


def sink_grants(database: str, tables: Iterable[GrantedTable], *, sink: Grantee) -> tuple[LiteralString, ...]:
    """The statements, in order, for a sink that writes these tables. Running them again changes nothing."""
    return (
        *statements("role", role=sink.sql, literal=literal(sink.name), database=database),
        *statements("role_sink", database=database, sink=sink.sql),
        *(
            statement
            for table in tables
            for statement in statements("role_sink_table", schema=table.schema, table=table.name, sink=sink.sql)
        ),
    )


def _outbox_statements(database: str, publisher: Grantee, relay: Grantee) -> Iterator[LiteralString]:
    for role in (publisher, relay):
        yield from statements("role", role=role.sql, literal=literal(role.name), database=database)
    yield from statements("role_outbox", publisher=publisher.sql, relay=relay.sql)


def _statements(
    database: str,
    tables: list[GrantedTable],
    owner: Grantee,
    source: Grantee,
    writer: Grantee,
    schema_owner: str | None,
) -> Iterator[LiteralString]:
    for role in (owner, source, writer):
        yield from statements("role", role=role.sql, literal=literal(role.name), database=database)
    yield from statements("role_install", database=database, owner=owner.sql)
    owners = {table.owner for table in tables} | ({schema_owner} if schema_owner else set())
    for member in sorted(owners - {owner.sql}):
        yield from statements("role_adopt", member=member, owner=owner.sql)
    for table in tables:
        yield from statements("role_source", schema=table.schema, table=table.name, source=source.sql)
        yield from statements("role_writer", schema=table.schema, table=table.name, writer=writer.sql)
        for sequence in table.sequences:
            yield from statements("role_sequence", sequence=sequence, writer=writer.sql)
    yield from statements("role_log", source=source.sql)
    yield from statements("role_loads", writer=writer.sql)

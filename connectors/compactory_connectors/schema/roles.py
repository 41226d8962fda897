"""Roles with just the rights of one component each, for the tables of a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg.rows import dict_row

from compactory.errors import ConfigError
from compactory_sql import query
from compactory_sql.roles import GrantedTable, Grantee, grants, jobs_grants, outbox_grants, sink_grants

from ..postgres.session import Connection, check_server
from .catalogue import resolve

__all__ = [
    "Roles",
    "grant",
    "plan_grants",
    "plan_jobs_grants",
    "plan_outbox_grants",
    "plan_sink_grants",
]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Names of the database roles: ``owner`` installs and adopts, ``source`` polls, ``writer`` maintains the tables."""

    owner: str = "compactory_owner"
    source: str = "compactory_source"
    writer: str = "compactory_writer"


def plan_grants(connection: Connection, tables: Sequence[str], roles: Roles) -> tuple[LiteralString, ...]:
    """Return the statements that make the roles and give each its rights; changes nothing.

    The owner gets the rights of whoever owns the tables and schema ``compactory``, as adopting needs them. Raises
    ConfigError for tables that are not there, and for a table or schema that another superuser owns.
    """
    check_server(connection)
    names = {"owner": roles.owner, "source": roles.source, "writer": roles.writer}
    facts = _row(connection, "roles/names", names)
    rows = [_row(connection, "roles/table", {"oid": resolve(connection, table)}) for table in tables]
    problems = [
        f"{row['name']} belongs to {row['owner']}, a superuser, whose rights {roles.owner} would get with it: "
        f"ALTER TABLE {row['name']} OWNER TO {facts['owner']}; or to a role that is no superuser"
        for row in rows
        if row.pop("owned_by_superuser") and row["owner"] != facts["owner"]
    ]
    schema_owner = facts["schema_owner"]
    if facts["schema_of_superuser"] and schema_owner != facts["owner"]:
        problems.append(
            f"schema compactory belongs to {schema_owner}, a superuser, whose rights {roles.owner} would need to adopt:"
            f" name that superuser as owner, who then adopts (--owner {schema_owner})"
        )
    if problems:
        raise ConfigError(problems)
    return grants(
        facts["database"],
        [GrantedTable(**{**row, "sequences": tuple(row["sequences"])}) for row in rows],
        schema_owner=schema_owner,
        **{part: Grantee(name=name, sql=facts[part]) for part, name in names.items()},
    )


def plan_outbox_grants(connection: Connection, publisher: str, relay: str) -> tuple[LiteralString, ...]:
    """Return the statements that make a role for services that publish and one for relays; changes nothing."""
    check_server(connection)
    facts = _row(connection, "roles/names", {"owner": "", "source": relay, "writer": publisher})
    return outbox_grants(
        facts["database"],
        publisher=Grantee(name=publisher, sql=facts["writer"]),
        relay=Grantee(name=relay, sql=facts["source"]),
    )


def plan_jobs_grants(connection: Connection, enqueuer: str, executor: str) -> tuple[LiteralString, ...]:
    """Return the statements that make a role for services that enqueue jobs and one for executors; changes nothing."""
    check_server(connection)
    facts = _row(connection, "roles/names", {"owner": "", "source": executor, "writer": enqueuer})
    return jobs_grants(
        facts["database"],
        enqueuer=Grantee(name=enqueuer, sql=facts["writer"]),
        executor=Grantee(name=executor, sql=facts["source"]),
    )


def plan_sink_grants(connection: Connection, sink: str, tables: Sequence[str] = ()) -> tuple[LiteralString, ...]:
    """Return the statements that make a role for sinks that write these tables; changes nothing. Raises ConfigError."""
    check_server(connection)
    facts = _row(connection, "roles/names", {"owner": "", "source": sink, "writer": sink})
    rows = [_row(connection, "roles/table", {"oid": resolve(connection, table)}) for table in tables]
    return sink_grants(
        facts["database"],
        [GrantedTable(**{name: row[name] for name in ("schema", "name", "owner")}, sequences=()) for row in rows],
        sink=Grantee(name=sink, sql=facts["source"]),
    )


def grant(connection: Connection, texts: tuple[LiteralString, ...]) -> tuple[LiteralString, ...]:
    """Run planned grants in one transaction: make the roles that are missing and give each its rights.

    A plan leaves out what concerns schema ``compactory`` until that is installed: plan and run it once more after it.
    """
    with connection.transaction():
        for text in texts:
            connection.execute(text)
    return texts


def _row(connection: Connection, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query(name), parameters).fetchone()
    assert row is not None
    return row

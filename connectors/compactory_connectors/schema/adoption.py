"""Adopts a live table: columns and triggers in one short transaction, indexes without blocking writers.

Each run compares the table with the settings and does what is missing. So the next run finishes one that was
interrupted. The table is usable after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.rows import dict_row, scalar_row

from compactory.errors import ConfigError
from compactory_sql import Adoption, Plan, StepGroup, query
from compactory_sql.planning import duplicates_query, notes, nulls_query, refusals, steps
from compactory_sql.step import Step
from compactory_sql.table import Table

from ..postgres.session import Connection, autocommit, check_server
from .catalogue import read_table, resolve
from .lock import Patience, adopting, in_short_transaction
from .migration import install, pending

__all__ = ["adopt", "plan"]

_LISTED = 5  # as many duplicates as the query returns


def plan(connection: Connection, adoption: Adoption) -> Plan:
    """Return the changes that :func:`adopt` would make now; makes none.

    Raises ConfigError with everything that forbids it: columns that are missing or of a wrong type, rows that violate
    the key, a server that can't be used.
    """
    check_server(connection)
    return _plan(connection, adoption, resolve(connection, adoption.table))


def adopt(
    connection: Connection,
    adoption: Adoption,
    progress: Callable[[str], None] = lambda _: None,
    *,
    confirm: Callable[[Plan], None] = lambda _: None,
    patience: Patience | None = None,
) -> list[Step]:
    """Run the missing steps and return them; an empty list means that nothing was missing.

    Installs schema ``compactory`` first if it is missing. ``confirm`` is called with the plan before anything changes;
    an exception of it ends the adoption. ``progress`` is called with the title of each step before it. The connection
    must not be in a transaction. Raises ConfigError before anything changes, Unreachable if a lock is not granted in
    time.
    """
    patience = patience or Patience()
    with autocommit(connection):
        check_server(connection)
        oid = resolve(connection, adoption.table)
        with adopting(connection, oid, patience):
            plan = _plan(connection, adoption, oid)
            confirm(plan)
            for migration in install(connection) if plan.migrations else ():
                progress(f"applied migration {migration.version} ({migration.name})")
            run = _Run(connection, plan, read_table(connection, oid), patience, progress)
            run.change()
            run.build()
            run.attach()
    return list(plan.steps)


def _plan(connection: Connection, adoption: Adoption, oid: int) -> Plan:
    table = read_table(connection, oid)
    problems = [*refusals(table, adoption), *_lacking_rights(connection, table)]
    if problems:
        raise ConfigError(problems)
    migrations = tuple(pending(connection))
    todo = steps(table, adoption)
    problems = [*_nulls(connection, table, adoption)]
    if any(step.unique for step in todo):
        problems += _duplicates(connection, table, adoption)
    if problems:
        raise ConfigError(problems)
    return Plan(
        table=table.root.sql,
        migrations=migrations,
        steps=todo,
        notes=notes(table, adoption),
        refused_changes=adoption.refused_changes,
    )


def _lacking_rights(connection: Connection, table: Table) -> Iterator[str]:
    name = table.root.sql
    with connection.cursor(row_factory=dict_row) as cursor:
        rights = cursor.execute(query("adoption/rights"), {"oid": table.root.oid}).fetchone()
    assert rights is not None
    role = rights["role"]
    if not rights["owns_table"]:
        owner, of_superuser = rights["table_owner"], rights["table_of_superuser"]
        remedy = (
            f"ALTER TABLE {name} OWNER TO {role}"
            if of_superuser
            else f"adopt it as {owner}, or GRANT {owner} TO {role}"
        )
        yield f"{role} does not own {name}, which belongs to {_described_owner(owner, of_superuser)}: {remedy};"
    if not rights["owns_schema"]:
        owner, of_superuser = rights["schema_owner"], rights["schema_of_superuser"]
        remedy = "adopt as a superuser" if of_superuser else f"adopt as {owner}, or GRANT {owner} TO {role};"
        yield (
            f"{role} may not use schema compactory, for schema compactory belongs to"
            f" {_described_owner(owner, of_superuser)}: {remedy}"
        )
    if not rights["schema_owner_reads"]:
        yield (
            f"{rights['schema_owner']}, who owns schema compactory, may not read {name}, which logging a TRUNCATE "
            f"needs: GRANT SELECT ON {name} TO {rights['schema_owner']};"
        )


def _described_owner(owner: str, of_superuser: bool) -> str:
    return f"{owner}, a superuser" if of_superuser else owner


def _nulls(connection: Connection, table: Table, adoption: Adoption) -> Iterator[str]:
    text = nulls_query(table, adoption)
    if text is None:
        return
    with connection.cursor(row_factory=scalar_row) as cursor:
        nulls: dict[str, int] = cursor.execute(text).fetchone() or {}
    for name, count in nulls.items():
        if count:
            column, rows = table.columns[name].sql, f"{count} {'row' if count == 1 else 'rows'}"
            yield (
                f"column {column} of {table.root.sql} is NULL in {rows}, and the source can't order or key by it: fill"
                f" it, then ALTER TABLE {table.root.sql} ALTER COLUMN {column} SET NOT NULL;"
            )


def _duplicates(connection: Connection, table: Table, adoption: Adoption) -> Iterator[str]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(duplicates_query(table, adoption)).fetchall()
    if rows:
        kind = "rows" if adoption.active is None else f"active rows ({adoption.active} is not false)"
        listed = ", ".join(f"{row['key']} ({row['rows']} rows)" for row in rows)
        yield (
            f"{table.root.sql} has several {kind} with one key ({', '.join(adoption.key)}): {listed}"
            f"{', …' if len(rows) == _LISTED else ''}. "
            + ("Delete all but one" if adoption.active is None else "Make all but one of each inactive")
        )


class _Run:
    """Executes the steps of a plan, group by group."""

    def __init__(
        self, connection: Connection, plan: Plan, table: Table, patience: Patience, progress: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._tables = [member.oid for member in table.members]
        self._patience = patience
        self._progress = progress

    def change(self) -> None:
        self._together(StepGroup.CHANGE)

    def attach(self) -> None:
        self._together(StepGroup.ATTACH)

    def build(self) -> None:
        """Build index by index. A failed build leaves an invalid index, which would slow down every write: drop it."""
        for step in self._plan.steps_of(StepGroup.BUILD):
            self._progress(step.title)
            with _unlimited(self._connection):
                try:
                    for text in step.sql:
                        self._execute(text)
                except psycopg.Error as error:
                    if not self._connection.closed:
                        self._execute(step.undo)
                    if isinstance(error, psycopg.errors.UniqueViolation):
                        raise ConfigError(f"could not {step.title}: {error.diag.message_detail}") from error
                    raise

    def _together(self, group: StepGroup) -> None:
        steps = self._plan.steps_of(group)
        if not steps:
            return

        def work() -> None:
            for text in self._plan.preamble(group, self._patience.lock_timeout):
                self._execute(text)
            for step in steps:
                self._progress(step.title)
                for text in step.sql:
                    self._execute(text)

        in_short_transaction(self._connection, self._tables, self._patience, self._progress, work)

    def _execute(self, text: str) -> None:
        self._connection.execute(text.encode(self._connection.info.encoding))


@contextmanager
def _unlimited(connection: Connection) -> Iterator[None]:
    with connection.cursor(row_factory=dict_row) as cursor:
        limits = cursor.execute(query("adoption/timeouts")).fetchone()
    connection.execute(query("adoption/set_timeouts"), {"statement_timeout": "0", "lock_timeout": "0"})
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(query("adoption/set_timeouts"), limits)

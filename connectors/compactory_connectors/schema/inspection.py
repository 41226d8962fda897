"""Inspects adopted tables: columns and triggers that a source relies on, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from compactory_sql import Adoption
from compactory_sql.adoption import XID_COLUMN
from compactory_sql.planning import refusals, steps
from compactory_sql.table import Member, Table
from compactory_sql.triggers import NOTIFY_TRIGGER

from ..postgres.session import Connection
from .catalogue import adopted_tables, read_table, resolve
from .migration import MigrationStatus, migration_status

__all__ = ["Inspection", "Status", "inspect", "judge", "status"]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The state of one table.

    ``adopted``: the column ``updated_xid`` and the required triggers exist, and the triggers are enabled as ALWAYS, so
    that the log of deleted rows is complete. ``notify``: statements on every partition wake a sleeping source.
    ``restamped``: triggers that fire after Compactory's may change ``updated_xid``. ``adoption``: the settings of the
    adoption; None if the table was never adopted. ``problems``: everything that is not as it should be. ``remedy``: the
    command that repairs what can be repaired. ``partitions``: their oids.
    """

    oid: int
    table: str
    adoption: Adoption | None
    adopted: bool
    notify: bool
    restamped: bool
    problems: tuple[str, ...]
    partitions: tuple[int, ...]

    @property
    def remedy(self) -> str | None:
        """The command to run when there are problems."""
        return self.adoption.command() if self.adoption is not None and self.problems else None


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of a database: migrations, and every table that has triggers of ours."""

    migrations: tuple[MigrationStatus, ...]
    tables: tuple[Inspection, ...]

    @property
    def healthy(self) -> bool:
        """Return True if nothing is pending and no table has problems."""
        return all(m.applied_at for m in self.migrations) and not any(t.problems for t in self.tables)


def inspect(connection: Connection, table: str | int) -> Inspection:
    """Inspect a table by name or oid; cheap enough for every start. Raises ConfigError when there is none."""
    return judge(read_table(connection, table if isinstance(table, int) else resolve(connection, table)))


def judge(facts: Table) -> Inspection:
    """Return the state of a table that follows from these facts."""
    adoption = _adoption(facts)
    adopted, problems = _verdict(facts, adoption)
    return Inspection(
        oid=facts.root.oid,
        table=facts.root.sql,
        adoption=adoption,
        adopted=adopted,
        notify=all(_notifies(facts, member) for member in facts.members),
        restamped=bool(facts.later_triggers),
        problems=tuple(problems),
        partitions=tuple(member.oid for member in facts.members[1:]),
    )


def status(connection: Connection) -> Status:
    """Return the state of the database. Raises ConfigError when its migrations are not those of this version."""
    migrations = migration_status(connection)
    return Status(
        migrations=tuple(migrations),
        tables=tuple(inspect(connection, oid) for oid in adopted_tables(connection)),
    )


def _adoption(table: Table) -> Adoption | None:
    if table.settings is None:
        return None
    try:
        return Adoption.from_settings(table.root.sql, table.settings)
    except ValueError:
        return None  # a trigger of the same name that is not ours; reported as a problem


def _verdict(table: Table, adoption: Adoption | None) -> tuple[bool, list[str]]:
    if adoption is None:
        if table.triggers or XID_COLUMN in table.columns:
            return False, [f"{table.root.sql} is partly adopted: run compactory sql adopt {table.root.sql} --key …"]
        return False, []
    problems = refusals(table, adoption)
    if problems:
        return False, problems
    todo = steps(table, adoption)
    return not any(step.vital for step in todo), [
        *(step.problem for step in todo),
        *(
            f"{trigger} fires after Compactory's and may change updated_xid, so each poll reads the whole table by xmin"
            for trigger in table.later_triggers
        ),
    ]


def _notifies(table: Table, member: Member) -> bool:
    trigger = table.trigger(member, NOTIFY_TRIGGER)
    return trigger is not None and trigger.enabled == "A"

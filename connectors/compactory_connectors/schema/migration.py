"""Applies the migrations of schema ``compactory``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row, scalar_row

from compactory.errors import ConfigError
from compactory_sql import INSTALL_LOCK_CLASS, Migration, migrations, query
from compactory_sql.migration import AppliedMigration, migration_problems

from ..postgres.session import Connection, check_server, opened

__all__ = ["MigrationStatus", "install", "migration_status", "pending"]


@dataclass(frozen=True, kw_only=True)
class MigrationStatus:
    """A migration that this version knows; ``applied_at`` is None while it is pending."""

    version: int
    name: str
    applied_at: datetime | None


def install(target: str | Connection) -> list[Migration]:
    """Apply the missing migrations in one transaction, and return them.

    In a transaction of the caller nothing is committed. Concurrent installers wait for each other.
    Raises ConfigError for a standby, a database newer than this version, or a changed migration.
    """
    with opened(target) as connection:
        check_server(connection)
        with connection.transaction():
            connection.execute(query("database/install_lock"), {"lock_class": INSTALL_LOCK_CLASS})
            missing = pending(connection)
            for migration in missing:
                connection.execute(migration.statements)
        return missing


def pending(connection: Connection) -> list[Migration]:
    """The migrations that the database lacks. Raises ConfigError when what was applied is not what this version has."""
    applied = [
        AppliedMigration(version=row["version"], name=row["name"], checksum=row["checksum"])
        for row in _rows(connection)
    ]
    problems = migration_problems(applied)
    if problems:
        raise ConfigError(problems)
    applied_versions = {row.version for row in applied}
    return [migration for migration in migrations() if migration.version not in applied_versions]


def migration_status(connection: Connection) -> list[MigrationStatus]:
    """Return every migration that this version knows. Raises ConfigError as :func:`pending` does."""
    pending(connection)
    times = {row["version"]: row["applied_at"] for row in _rows(connection)}
    return [MigrationStatus(version=m.version, name=m.name, applied_at=times.get(m.version)) for m in migrations()]


def _rows(connection: Connection) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=scalar_row) as cursor:
        if cursor.execute(query("database/installed")).fetchone() is None:
            return []
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:  # whatever the DateStyle is
        try:
            return cursor.execute(query("database/migrations")).fetchall()
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(f"{error.diag.message_primary}: connect as the role that installed it") from error

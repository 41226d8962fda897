"""The numbered migrations of schema ``compactory``. Each is a file ``migrations/NNNN_name.sql`` that never changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import LiteralString

from compactory_sql.loader import read, statements
from compactory_sql.naming import literal

__all__ = ["AppliedMigration", "Migration", "migration_problems", "migrations"]

_DROP_STAGING = (
    "-- DROP SCHEMA compactory CASCADE does not drop this schema.\nDROP SCHEMA IF EXISTS compactory_staging;\n"
)


@dataclass(frozen=True, kw_only=True)
class AppliedMigration:
    """A row of ``compactory.migrations``."""

    version: int
    name: str
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A migration: brings the schema from version ``version - 1`` to ``version``, in one transaction."""

    version: int
    name: str
    sql: LiteralString

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> LiteralString:
        """Return the SQL that applies the migration and inserts its row into ``compactory.migrations``."""
        values = {"version": self.version, "name": literal(self.name), "checksum": literal(self.checksum)}
        (record,) = statements("record", **values)
        return f"{_DROP_STAGING if self.version == 1 else ''}{self.sql}\n{record};"

    def script(self) -> str:
        """Return the same as a script for psql, with its transaction."""
        return f"-- Migration {self.version}: {self.name}\nBEGIN;\n{self.statements}\nCOMMIT;"


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in order. Raises ValueError if the numbers are not 1, 2, 3 …."""
    numbered: list[Migration] = []
    for file in sorted((resources.files("compactory_sql") / "migrations").iterdir(), key=lambda item: item.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            numbered.append(Migration(version=int(number), name=name, sql=read(f"migrations/{file.name}")))
    if [migration.version for migration in numbered] != list(range(1, len(numbered) + 1)):
        raise ValueError(f"migrations are not numbered 1, 2, 3 …: {[m.version for m in numbered]}")
    return tuple(numbered)


def migration_problems(applied: Iterable[AppliedMigration]) -> list[str]:
    """Return why this version must not touch a database with these migrations; an empty list if it may."""
    by_version = {migration.version: migration for migration in migrations()}
    problems: list[str] = []
    for row in applied:
        if row.version not in by_version:
            problems.append(
                f"the database has migration {row.version} ({row.name}), this version of Compactory knows "
                f"{len(by_version)}: upgrade Compactory"
            )
        elif row.checksum != by_version[row.version].checksum:
            checksum = by_version[row.version].checksum
            problems.append(
                f"migration {row.version} ({row.name}) was applied with another text than this version of "
                f"Compactory has (checksum {row.checksum[:12]}…, not {checksum[:12]}…): install "
                "the version that applied it, or restore the file as it was"
            )
    return problems

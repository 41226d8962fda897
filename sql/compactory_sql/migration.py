"""Numbered migrations. Each is a file ``migrations/NNNN_name.sql``; applied ones never change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import LiteralString

from compactory_sql.loader import read, statements
from compactory_sql.naming import literal

__all__ = ["Applied", "Migration", "differences", "migrations"]

_FIRST = "-- DROP SCHEMA compactory CASCADE leaves it behind.\nDROP SCHEMA IF EXISTS compactory_staging;\n"


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A row of ``compactory.migrations``."""

    version: int
    name: str
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One migration: runs in a transaction, changes the schema from the version before it to its own."""

    version: int
    name: str
    sql: LiteralString

    @property
    def checksum(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> LiteralString:
        """The migration and the record of its being applied."""
        values = {"version": self.version, "name": literal(self.name), "checksum": literal(self.checksum)}
        (record,) = statements("record", **values)
        return f"{_FIRST if self.version == 1 else ''}{self.sql}\n{record};"

    def script(self) -> str:
        """The same for psql."""
        return f"-- Migration {self.version}: {self.name}\nBEGIN;\n{self.statements}\nCOMMIT;"


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations in order; ValueError when a number is missing or given twice."""
    found: list[Migration] = []
    for file in sorted((resources.files("compactory_sql") / "migrations").iterdir(), key=lambda item: item.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(version=int(number), name=name, sql=read(f"migrations/{file.name}")))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are not numbered 1, 2, 3 …: {[m.version for m in found]}")
    return tuple(found)


def differences(applied: Iterable[Applied]) -> list[str]:
    """Why the code must not touch a database with these migrations; empty when it may."""
    known = {migration.version: migration for migration in migrations()}
    problems: list[str] = []
    for row in applied:
        if row.version not in known:
            problems.append(
                f"the database has migration {row.version} ({row.name}), this version of Compactory knows "
                f"{len(known)}: upgrade Compactory"
            )
        elif row.checksum != known[row.version].checksum:
            problems.append(
                f"migration {row.version} ({row.name}) was applied with another text than this version of "
                f"Compactory has (checksum {row.checksum[:12]}…, not {known[row.version].checksum[:12]}…): install "
                "the version that applied it, or restore the file as it was"
            )
    return problems

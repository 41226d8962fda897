"""Staged rows compared with their table, and merged into it in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory_sql import query

from ..target import Change, Differences, Mode, Sample
from .load_sql import LoadSql

__all__ = ["Compared", "compare", "merge", "refuse_same", "same_key"]

_KINDS: Final = {Change.INSERT: "i", Change.UPDATE: "u", Change.DEACTIVATE: "d"}
_SAMPLES: Final = 5
_TRIES: Final = 5
"""Attempts at a merge that conflicts with transactions of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The differences, and statements that apply them. ``total``: keys of the load, without those it calls inactive."""

    statements: LoadSql
    differences: Differences
    total: int


def compare(connection: psycopg.Connection[Any], statements: LoadSql, mode: Mode, total: int) -> Compared:
    """List what the staged rows change; ``total`` is how many they are.

    Raises ConfigError where the table or the load is not fit for it.
    """
    _refuse_several(connection, statements)
    present = _scalar(connection, statements.render("present"))
    if not present and _scalar(connection, statements.render("empty")):
        statements = replace(statements, everything=True)
        inserted = _scalar(connection, statements.render("wanted"))
        counts = {Change.INSERT: inserted}
    else:
        connection.execute(statements.render("compare"))
        if statements.table.active in statements.columns:
            total -= _run(connection, statements.render("switched_off"))
        if mode is Mode.REPLACE:
            connection.execute(statements.missing())
        changes = dict(connection.execute(statements.render("counts")).fetchall())
        counts = {change: changes.get(kind, 0) for change, kind in _KINDS.items()}
    _refuse_incomplete(statements, counts[Change.INSERT])
    counts = _with_unchanged(counts, total)
    samples = {
        change: _samples(connection, statements, change) for change, number in counts.items() if number and present
    }
    if counts[Change.INSERT]:
        samples[Change.INSERT] = _samples(connection, statements, Change.INSERT)
    differences = Differences(counts=counts, present=present, samples=samples)
    return Compared(statements=statements, differences=differences, total=total)


def merge(
    connection: psycopg.Connection[Any],
    compared: Compared,
    load_id: str,
    lock_timeout: float,
    former_load_id: str | None = None,
) -> Mapping[Change, int]:
    """Apply the changes in one transaction that also records the load's id, and return the numbers of changed keys.

    The transaction forgets ``former_load_id``.
    Raises CompactoryError where a row breaks a rule of the table, Unreachable where locks of others do not end; nothing
    was changed then.
    """
    tries = 0
    previous: str | None = ""
    while True:
        tries += 1
        try:
            with connection.transaction():
                counts = _merge(connection, compared, load_id, lock_timeout)
                if former_load_id is not None:
                    former = {"oid": compared.statements.table.oid, "id": former_load_id}
                    connection.execute(query("load/forget_id"), former)
                return counts
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation) as error:
            detail = error.diag.message_detail
            if tries == _TRIES or detail == previous:  # a rule that the load itself breaks has the same detail again
                raise _refused(connection, compared.statements, error) from error
            previous = detail
        except psycopg.errors.LockNotAvailable as error:
            raise _blocked(connection, compared.statements, lock_timeout) from error
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.RaiseException) as error:
            raise _refused(connection, compared.statements, error) from error


def _merge(
    connection: psycopg.Connection[Any], compared: Compared, load_id: str, lock_timeout: float
) -> dict[Change, int]:
    statements, expected = compared.statements, compared.differences.counts
    connection.execute(query("load/begin"), {"lock_timeout": f"{lock_timeout:g}s"})
    if not statements.table.unique:
        connection.execute(statements.render("alone"))
    changes = dict.fromkeys(_KINDS, 0)
    # In this order, a value that only one active row may have goes from a key that is left to one that is new.
    if expected.get(Change.DEACTIVATE):
        changes[Change.DEACTIVATE] = _run(connection, statements.render("deactivate"))
    if expected[Change.UPDATE]:
        changes[Change.UPDATE] = _run(connection, statements.update("u"))
    if expected[Change.INSERT]:
        changes[Change.INSERT] = _run(connection, statements.reactivate())
        # A row that comes after this look violates the unique index.
        empty = statements.everything and _scalar(connection, statements.render("empty"))
        changes[Change.INSERT] += _run(connection, statements.insert(empty=empty))
    if changes[Change.INSERT] < expected[Change.INSERT]:
        changes[Change.UPDATE] += _run(connection, statements.update("i"))  # somebody else has inserted them since
    connection.execute(query("load/settle"))
    counts = _with_unchanged(changes, compared.total)
    changed = json.dumps({change.value: number for change, number in counts.items()})
    connection.execute(query("load/record"), {"oid": statements.table.oid, "id": load_id, "changed": changed})
    return counts


def _with_unchanged(counts: Mapping[Change, int], total: int) -> dict[Change, int]:
    """Return the numbers with that of the keys of the load that stay as they are."""
    full = {change: counts.get(change, 0) for change in _KINDS}
    full[Change.UNCHANGED] = max(total - full[Change.INSERT] - full[Change.UPDATE], 0)
    return full


def same_key(connection: psycopg.Connection[Any], statements: LoadSql) -> str | None:
    """Return a key that several staged rows have for Postgres; None if there is none."""
    row = connection.execute(statements.render("same_key")).fetchone()
    return _named(statements.table.key, row) if row is not None else None


def refuse_same(connection: psycopg.Connection[Any], statements: LoadSql) -> None:
    """Raise ConfigError naming a key that several staged rows have for Postgres."""
    if equal_key := same_key(connection, statements):
        raise ConfigError(f"{statements.table.label}: the load has keys that are equal for Postgres: {equal_key}")


def _refuse_several(connection: psycopg.Connection[Any], statements: LoadSql) -> None:
    table = statements.table
    several = None if table.unique else connection.execute(statements.render("several")).fetchone()
    if several is not None:
        raise ConfigError(
            f"{table.label} has several active rows of one key, {_named(table.key, several)}: deactivate all but one,"
            " and make a unique index on the key"
        )


def _refuse_incomplete(statements: LoadSql, inserted: int) -> None:
    lacking = statements.table.required(statements.columns) if inserted else []
    if lacking:
        raise ConfigError(
            f"{statements.table.label}: {inserted} keys are new, and the load has no column"
            f" {', '.join(lacking)}, which may not be null and has no default: map it, or give it a default"
        )


def _samples(connection: psycopg.Connection[Any], statements: LoadSql, change: Change) -> list[Sample]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(statements.sample(_KINDS.get(change), _SAMPLES))
        return [Sample(**row) for row in rows]


def _refused(connection: psycopg.Connection[Any], statements: LoadSql, error: psycopg.Error) -> CompactoryError:
    """Return the refusal of a row by Postgres, with the row's key where it can be found."""
    message = error.diag.message_primary or str(error)
    which = ""
    if isinstance(error, psycopg.errors.UniqueViolation | psycopg.errors.ForeignKeyViolation):
        which = f" ({error.diag.message_detail})"
    elif isinstance(error, psycopg.errors.NotNullViolation) and error.diag.column_name:
        which = _breaking(
            connection, statements, sql.SQL("{} IS NULL").format(sql.Identifier("s", error.diag.column_name))
        )
    elif isinstance(error, psycopg.errors.CheckViolation):
        which = _breaking_check(connection, statements, error.diag.constraint_name)
    return CompactoryError(f"{statements.table.label} refuses the load: {message}{which}; nothing was changed")


def _breaking_check(connection: psycopg.Connection[Any], statements: LoadSql, name: str | None) -> str:
    row = connection.execute(query("load/constraint"), {"oid": statements.table.oid, "name": name}).fetchone()
    if row is None:
        return ""
    return _breaking(connection, statements, sql.SQL("NOT ({})").format(sql.SQL(row[0])))


def _breaking(connection: psycopg.Connection[Any], statements: LoadSql, broken: sql.Composable) -> str:
    """Return the key of a row that breaks a rule; nothing for a rule about columns that the load lacks."""
    with suppress(psycopg.Error):
        row = connection.execute(statements.breaking(broken)).fetchone()
        return f" ({_named(statements.table.key, row)})" if row is not None else ""
    return ""


def _blocked(connection: psycopg.Connection[Any], statements: LoadSql, lock_timeout: float) -> Unreachable:
    holders = connection.execute(query("adoption/blockers"), {"oids": [statements.table.oid]}).fetchall()
    sessions = "; ".join(holder for (holder,) in holders) or "a transaction that has ended by now"
    return Unreachable(
        "Postgres",
        f"{statements.table.label}: a lock was not got in {lock_timeout:g} s, and nothing was changed; held by"
        f" {sessions}",
    )


def _named(key: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(key, values, strict=True))


def _run(connection: psycopg.Connection[Any], statement: sql.Composed | None) -> int:
    return connection.execute(statement).rowcount if statement is not None else 0


def _scalar(connection: psycopg.Connection[Any], statement: sql.Composed) -> Any:
    row = connection.execute(statement).fetchone()
    assert row is not None
    return row[0]

"""Loads in a session of one's own, as in a notebook: what ``compactory spark load`` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import ConfigError
from compactory.nearest import nearest
from compactory_connectors.postgres.jdbc_url import checked_url

from .failures import spark_failures
from .into_table.to_postgres import PostgresTarget
from .load import Load, Plan
from .report import LoadReport
from .rules.limit import Limit
from .rules.rules import Reference, Rules
from .rules.rules_file import read_rules
from .session import configured
from .target import Mode

__all__ = ["load"]


def load(
    spark: SparkSession,
    sources: str | Path | Sequence[str | Path],
    table: str,
    postgres: str,
    *,
    rules: str | Path | None = None,
    references: Mapping[str, DataFrame] | None = None,
    key: str | Sequence[str] | None = None,
    active: str | None = None,
    mode: str = "upsert",
    dry_run: bool = False,
    rejects: str | Path | None = None,
    max_rejects: str | int | None = None,
    max_deactivate: str | int | None = None,
    load_id: str | None = None,
) -> LoadReport:
    """Load files into a table; the report says what was done, or why a limit refused it.

    ``sources``: files, globs or folders. ``postgres``: the database's URL. ``rules``: a file of rules. ``references``:
    for each directory that the rules refer to a DataFrame with the column that they name, else with the key as its
    first. ``key`` and ``active`` are for a table that is not adopted. The others are the options of
    ``compactory spark load``.

    Raises ConfigError for wrong arguments, Unreachable, CompactoryError; nothing was written then.
    """
    argument: Any = sources  # notebooks are not type-checked
    if isinstance(argument, DataFrame):
        raise ConfigError(
            'sources must be paths of files, not a DataFrame: write that by df.write.format("compactory"),'
            f" options table={table!r} and url"
        )
    paths = [sources] if isinstance(sources, str | Path) else [*sources]
    found = read_rules(Path(rules)) if rules is not None else Rules()
    known = references or {}
    lacking = {rule.reference.directory for rule in found.columns.values() if rule.reference} - known.keys()
    if lacking:
        raise ConfigError(f"the rules refer to {', '.join(sorted(lacking))}: give references={{NAME: DataFrame}}")
    if mode not in {each.value for each in Mode}:
        raise ConfigError(f"mode must be upsert or replace, not {mode!r}{nearest(mode, [*Mode])}")
    report = LoadReport(
        load_id=str(uuid4()) if load_id is None else load_id,
        directory=table,
        target=f"table {table}",
        mode=Mode(mode),
        source=[*map(str, paths)],
    )
    target = PostgresTarget(
        connection=checked_url(postgres),
        table=table,
        key=[key] if isinstance(key, str) else key,
        active=active,
        load_id=report.load_id,
    )
    plan = Plan(
        sources=report.source,
        rules=found,
        references=lambda _spark, _column, reference: _allowed(known[reference.directory], reference),
        mode=report.mode,
        dry_run=dry_run,
        rejects=None if rejects is None else str(rejects),
        max_rejects=Limit.parse(str(max_rejects), "max_rejects") if max_rejects is not None else None,
    )
    if max_deactivate is not None:
        plan = replace(plan, max_deactivate=Limit.parse(str(max_deactivate), "max_deactivate"))
    with _working(spark) as copy, closing(target):
        Load(copy, target, plan, report).run()
    return report


@contextmanager
def _working(spark: SparkSession) -> Iterator[SparkSession]:
    with spark_failures(), configured(spark):
        yield spark


def _allowed(frame: DataFrame, reference: Reference) -> DataFrame:
    """The values that a reference allows, as text in ``value``, each once. Raises ConfigError."""
    name = reference.column or frame.columns[0]
    if name not in frame.columns:
        raise ConfigError(f"references: the DataFrame of {reference.directory} has no column {name}")
    return frame.select(frame[name].cast("string").alias("value")).where("value IS NOT NULL").distinct()

"""``load()``: what ``compactory spark load`` does, in a session of the caller's own, as in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import ConfigError
from compactory.nearest import nearest
from compactory_connectors.postgres.jdbc_url import checked_url

from .failures import spark_failures
from .into_table.to_postgres import CONNECTIONS, PostgresTarget
from .load_job import Load, Plan
from .report import LoadRefused, LoadReport, Outcome
from .rules.limit import SHARE_OF_KEYS, Limit
from .rules.rules import Reference, Rules
from .rules.rules_file import read_rules
from .session import configured
from .target import Mode

__all__ = ["load"]


def load(
    spark: SparkSession,
    source: DataFrame | str | Path | Sequence[str | Path],
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
    connections: int = CONNECTIONS,
) -> LoadReport:
    """Load files or a DataFrame into a table of Postgres, all rows or none, and return the report.

    ``source`` is a DataFrame, or files, globs or folders. ``postgres`` is the database's URL. ``rules`` is a file of
    rules. ``references`` has for each directory that the rules refer to a DataFrame, with the column that they name, or
    else with the key as its first column. ``key`` and ``active`` are for a table that is not adopted. ``connections``
    limits the tasks that copy at a time. The others are the options of ``compactory spark load``.

    Raises LoadRefused where a limit refuses the load, ConfigError for wrong arguments, Unreachable, CompactoryError;
    nothing was written then.
    """
    rules_of_load = read_rules(Path(rules)) if rules is not None else Rules()
    frames = references or {}
    _check_references(rules_of_load, frames)
    if mode not in {*Mode}:
        raise ConfigError(f"mode must be upsert or replace, not {mode!r}{nearest(mode, [*Mode])}")
    frame = source if isinstance(source, DataFrame) else None
    report = LoadReport(
        load_id=str(uuid4()) if load_id is None else load_id,
        directory=table,
        target=f"table {table}",
        mode=Mode(mode),
        source=_source_names(source),
    )
    target = PostgresTarget(
        connection=checked_url(postgres),
        table=table,
        key=[key] if isinstance(key, str) else key,
        active=active,
        load_id=report.load_id,
        is_named=load_id is not None,
        connections=connections,
    )
    plan = Plan(
        sources=report.source,
        frame=frame,
        rules=rules_of_load,
        references=lambda _spark, _column, reference: _allowed(frames[reference.directory], reference),
        mode=report.mode,
        dry_run=dry_run,
        rejects=None if rejects is None else str(rejects),
        max_rejects=_parsed_limit("max_rejects", max_rejects),
        max_deactivate=_parsed_limit("max_deactivate", max_deactivate) or SHARE_OF_KEYS,
    )
    with spark_failures(), configured(spark), closing(target):
        Load(spark, target, plan, report).run()
    if report.outcome is Outcome.REFUSED:
        raise LoadRefused(report)
    return report


def _source_names(source: DataFrame | str | Path | Sequence[str | Path]) -> list[str]:
    if isinstance(source, DataFrame):
        return ["the DataFrame"]
    return [str(source)] if isinstance(source, str | Path) else [*map(str, source)]


def _parsed_limit(name: str, limit: str | int | None) -> Limit | None:
    return Limit.parse(str(limit), name) if limit is not None else None


def _check_references(rules: Rules, frames: Mapping[str, DataFrame]) -> None:
    directories = {rule.reference.directory for rule in rules.columns.values() if rule.reference}
    if missing := sorted(directories - frames.keys()):
        raise ConfigError(f"the rules refer to {', '.join(missing)}: give references={{NAME: DataFrame}}")


def _allowed(frame: DataFrame, reference: Reference) -> DataFrame:
    """Return the values that a reference allows, as text in ``value``, each once. Raises ConfigError."""
    name = reference.column or frame.columns[0]
    if name not in frame.columns:
        raise ConfigError(f"references: the DataFrame of {reference.directory} has no column {name}")
    return frame.select(frame[name].cast("string").alias("value")).where("value IS NOT NULL").distinct()

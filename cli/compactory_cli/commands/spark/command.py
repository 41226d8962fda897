"""``compactory spark``: loads and exports directories. Slow imports are inside functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ...context.flags import App, argument, flag, option
from ...context.session import Providers, begin, refuse
from ...views.terminal import answer, number

if TYPE_CHECKING:
    from compactory_connectors.spark.session import SparkOptions

__all__ = ["app"]

app = App(name="spark", help="Load and export directories of any size with Apache Spark.")

_Master = Annotated[str | None, option("--master", "MASTER", "Spark's master URL; default: local[*].")]
_Conf = Annotated[list[str] | None, option("--conf", "KEY=VALUE", "A property of Spark; repeatable.")]


@app.command("load")
def run_load(
    sources: Annotated[list[str], argument("SOURCE…", "Files, globs or folders.")],
    directory: Annotated[str, option("--directory", "NAME", "Directory, table or topic.")],
    to: Annotated[Literal["postgres", "kafka"], option("--to", help="Its table, or its topic.")],
    rules: Annotated[Path | None, option("--rules", "FILE", "YAML file with the rules for columns.")] = None,
    mode: Annotated[Literal["upsert", "replace"], option("--mode", help="replace deactivates absent keys.")] = "upsert",
    dry_run: Annotated[bool, flag("--dry-run", "Show what would change; write only rejects.")] = False,
    rejects: Annotated[str | None, option("--rejects", "DIR", "A folder for rejected rows.")] = None,
    max_rejects: Annotated[str | None, option("--max-rejects", "N|N%", "Most rejects; without --rejects none.")] = None,
    max_deactivate: Annotated[
        str | None, option("--max-deactivate", "N|N%", "Most missing keys; default: as the connector.")
    ] = None,
    load_id: Annotated[str | None, option("--load-id", "ID", "Load into Postgres only once under this id.")] = None,
    report: Annotated[Path | None, option("--report", "FILE", "JSON report, also of a load that fails.")] = None,
    form: Annotated[
        Literal["csv", "json", "parquet"] | None,
        option("--format", help="Of the files; default: by their names."),
    ] = None,
    provider: Providers = None,
    master: _Master = None,
    conf: _Conf = None,
) -> None:
    """Load files into a directory: check each row, and write what differs.

    A failed load into a topic may be written in part: run it again. Exit code 1: refused by a limit, or failed.
    4: another load has the table.

    Example: `compactory spark load tenants.csv --directory tenants --to postgres --dry-run`
    """
    configuration = begin()
    options = _spark_options(master, conf or ())
    from .load import load

    load(
        configuration,
        options,
        directory,
        to,
        rules_file=rules,
        report_file=report,
        load_id=load_id,
        limits={"--max-rejects": max_rejects, "--max-deactivate": max_deactivate},
        providers=provider or (),
        mode=mode,
        form=form,
        sources=sources,
        dry_run=dry_run,
        rejects=rejects,
    )


@app.command("export")
def export(
    directory: Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")],
    to: Annotated[str, option("--to", "PATH", "A folder on any file system, or what the format takes.")],
    *,
    form: Annotated[str, option("--format", "FORMAT", "One that Spark has, such as csv, json or delta.")] = "parquet",
    columns: Annotated[
        str | None,
        option("--columns", "LIST", "Spark's types: 'id bigint, at timestamp'; default: the connector's, else found."),
    ] = None,
    partition_by: Annotated[
        list[str] | None, option("--partition-by", "COLUMN", "A folder for each value; repeatable.")
    ] = None,
    at: Annotated[str | None, option("--at", "POSITION", "State at a cursor or time (2026-03-01T00:00:00Z).")] = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace all that is in the folder.")] = False,
    max_bad: Annotated[
        int | None,
        option("--max-bad", "N", "End with exit code 1 if more records can't be read; all rows are written.", min=0),
    ] = None,
    wait: Annotated[float, option("--wait", "SECONDS", "Time to wait for an open transaction.", min=0)] = 60.0,
    task_memory: Annotated[int, option("--task-memory", "MB", "Keys and values that a task may hold.", min=16)] = 512,
    master: _Master = None,
    conf: _Conf = None,
) -> None:
    """Export a directory's newest entries to files, up to the high watermarks of the start.

    Spark writes the file _SUCCESS last. Exit code 1: more bad records than --max-bad, no record that can be read, or a
    step failed. 2: bad usage, or a folder that exists.

    Example: `compactory spark export tenants --to s3a://lake/tenants`
    """
    configuration = begin()
    options = _spark_options(master, conf or ())
    from compactory_connectors.spark.exporting import export as run
    from compactory_connectors.spark.failures import spark_failures
    from compactory_connectors.spark.session import session

    from ...context.reading import resolve

    [source] = resolve(configuration, [directory])
    settings = configuration.directories.get(directory)
    with spark_failures(), session(f"compactory export {directory}", options) as started:
        report = run(
            started,
            source,
            to,
            kafka=configuration.kafka().properties(),
            format=form,
            columns=columns,
            connector=settings.connector if settings is not None and columns is None else None,
            partition_by=partition_by or (),
            mode="overwrite" if overwrite else "error",
            max_bad=max_bad,
            at=at,
            wait=wait,
            taskMemory=task_memory,
        )
    counts = f"{number(report.rows)} rows, {number(report.bad)} bad rows"
    answer(report.as_json(), f"directory {report.directory}: exported to {report.path}: {counts}")


def _spark_options(master: str | None, conf: Sequence[str]) -> SparkOptions:
    """Return the options of a session; on a terminal Spark shows its progress. Raises ConfigError."""
    from compactory_connectors.spark.session import SparkOptions

    properties = {"spark.ui.showConsoleProgress": "true"} if sys.stderr.isatty() else {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not name or not equals:
            refuse(f"--conf {text}: must be KEY=VALUE, such as spark.sql.shuffle.partitions=64")
        properties[name] = value
    return SparkOptions(master=master, conf=properties)

"""``compactory spark``: loads and exports directories. Slow imports are inside functions."""

from __future__ import annotations

from typing import Annotated

import typer

from ...context.flags import Flags, argument, command, flag, option
from ...context.session import begin
from ...views.terminal import number, print_json, print_table, write
from .arguments import LoadArguments, SparkArguments

__all__ = ["app"]

app = typer.Typer(name="spark", help="Load and export directories of any size with Apache Spark.", no_args_is_help=True)


@app.command("load")
@command
def run_load(flags: Flags, arguments: LoadArguments, spark: SparkArguments) -> None:
    """Load files or a table into a directory: check each row, and write what differs.

    A failed load into a topic may be written in part: run it again. Exit code 1: refused by a limit, or failed.
    4: another load has the table.

    Example: `compactory spark load tenants.csv --directory tenants --to postgres --dry-run`
    """
    from .load import LoadCommand

    configuration = begin(flags)
    LoadCommand(configuration=configuration, options=spark.options(), as_json=flags.json, **vars(arguments)).run()


@app.command("export")
@command
def export(
    flags: Flags,
    directory: Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")],
    to: Annotated[str, option("--to", "PATH", "A folder on any file system, or what the format takes.")],
    *,
    form: Annotated[
        str, option("--format", "FORMAT", "parquet, orc, csv, json; or avro, delta, iceberg, hudi if installed.")
    ] = "parquet",
    columns: Annotated[
        str | None,
        option(
            "--columns",
            "LIST",
            "Fields and Spark's types: 'id bigint, at timestamp'; default: those of the directory's connector, else as"
            " found in the values.",
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None, option("--partition-by", "COLUMN", "A folder for each value; may be repeated.")
    ] = None,
    at: Annotated[
        str | None, option("--at", "POSITION", "The state at a cursor, or at a time such as 2026-03-01T00:00:00Z.")
    ] = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace all that is in the folder.")] = False,
    max_bad: Annotated[
        int | None,
        option("--max-bad", "N", "End with exit code 1 if more records can't be read; all rows are written.", min=0),
    ] = None,
    wait: Annotated[float, option("--wait", "SECONDS", "Time to wait for an open transaction.", min=0)] = 60.0,
    task_memory: Annotated[int, option("--task-memory", "MB", "Keys and values that a task may hold.", min=16)] = 512,
    spark: SparkArguments,
) -> None:
    """Export a directory's newest entries to files, up to the high watermarks of the start.

    Spark writes the file _SUCCESS last. Exit code 1: more bad records than --max-bad, no record that can be read, or a
    step failed. 2: bad usage, or a folder that exists.

    Example: `compactory spark export tenants --to s3a://lake/tenants`
    """
    from compactory_connectors.spark.exporting import export as run
    from compactory_connectors.spark.failures import spark_failures
    from compactory_connectors.spark.session import session

    from ...context.reading import resolve
    from ...views.spark_progress import StageBars

    configuration = begin(flags)
    [source] = resolve(configuration, [directory])
    settings = configuration.directories.get(directory)
    kafka = configuration.kafka().properties()
    with spark_failures(), StageBars() as stages:
        stages.begin("starting Spark", None)
        with session(f"compactory export {directory}", spark.options()) as started, stages.watching(started):
            stages.begin("exporting", None)
            report = run(
                started,
                source,
                to,
                kafka=kafka,
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
            stages.end()
    if flags.json:
        print_json(report.as_json())
        return
    write(f"directory {report.directory}: exported to {report.path}")
    counts = [("rows", number(report.rows)), ("bad rows", number(report.bad))]
    print_table(("exported", "number"), counts, right=("number",))

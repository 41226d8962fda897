"""``compactory spark``: loads and exports directories. Slow imports are inside functions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...context.flags import Flags, argument, command, flag, option
from ...context.session import begin
from ...views.terminal import number, print_json, print_table, write
from .arguments import Format, LoadArguments, SparkArguments

if TYPE_CHECKING:
    from compactory_connectors.spark.export.job import ExportOptions
    from compactory_connectors.spark.export.manifest import Manifest
    from compactory_connectors.spark.session import SparkOptions

    from ...context.configuration import Configuration

__all__ = ["app"]

app = typer.Typer(name="spark", help="Load and export directories of any size with Apache Spark.", no_args_is_help=True)


@app.command("load")
@command
def run_load(flags: Flags, arguments: LoadArguments, spark: SparkArguments) -> None:
    """Load files or a table into a directory: checked row by row, compared, and written as a whole or not at all.

    Exit code 1: a limit refused the load, or a step failed; nothing was written. 4: a source owns the topic.

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
    to: Annotated[str, option("--to", "PATH", "A new or empty folder, on any file system.")],
    *,
    form: Annotated[Format, option("--format", help="Format of the files.")] = "parquet",
    since: Annotated[
        str | None, option("--since", "PATH", "Only records that changed after the export in this folder.")
    ] = None,
    history: Annotated[bool, flag("--history", "Every version that the topic still has, with its time.")] = False,
    columns: Annotated[
        str | None,
        option(
            "--columns", "LIST", "Fields and Spark's types: 'id bigint, at timestamp'; default: as found in the values."
        ),
    ] = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace the export that is in the folder.")] = False,
    max_bad: Annotated[
        int | None,
        option(
            "--max-bad", "N", "End with exit code 1 if more records can't be read; the export is still written.", min=0
        ),
    ] = None,
    wait: Annotated[float, option("--wait", "SECONDS", "Time to wait for an open transaction.", min=0)] = 60.0,
    task_memory: Annotated[int, option("--task-memory", "MB", "Keys and values that a task may hold.", min=16)] = 512,
    spark: SparkArguments,
) -> None:
    """Export a topic's newest records to files, up to the high watermarks of the start, with a manifest written last.

    A folder without _manifest.json holds no export: one that was cut off can be run again. Exit code 1: more bad
    records than --max-bad, no record that can be read, or a step failed.

    Example: `compactory spark export tenants --to s3a://lake/tenants`
    """
    from compactory_connectors.spark.export.job import ExportOptions

    from ...context.failure import StepFailed

    options = ExportOptions(
        format=form,
        since=since,
        history=history,
        columns=columns,
        overwrite=overwrite,
        wait=wait,
        task_memory=task_memory << 20,
    )
    configuration = begin(flags)
    manifest = _run_export(configuration, directory, to, options, spark.options())
    _show_manifest(manifest, to, as_json=flags.json)
    counts = manifest.counts
    bad = counts.bad + counts.nameless
    if bad and counts.rows == counts.bad + counts.deletes:
        raise StepFailed(f"none of the {bad} records can be read; {to} names them in its manifest")
    if max_bad is not None and bad > max_bad:
        raise StepFailed(f"{bad} records can't be read, more than --max-bad {max_bad}; {to} names them in its manifest")


def _run_export(
    configuration: Configuration, name: str, path: str, options: ExportOptions, spark_options: SparkOptions
) -> Manifest:
    from compactory_connectors.spark.export.job import export as run
    from compactory_connectors.spark.failures import spark_failures
    from compactory_connectors.spark.session import session

    from ...context.reading import resolve
    from ...views.spark_progress import StageBars

    [directory] = resolve(configuration, [name])
    with spark_failures(), StageBars() as stages:
        stages.begin("starting Spark", None)
        with session(f"compactory export {name}", spark_options) as spark, stages.watching(spark):
            return run(spark, configuration.kafka(), directory, path, options, stages)


def _show_manifest(manifest: Manifest, path: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"path": path, **_manifest_json(manifest)})
        return
    counts = _manifest_json(manifest)["counts"].items()
    write(f"{manifest.export.value} export of topic {manifest.topic} in {path}")
    rows = ((name, number(count)) for name, count in counts if count or name == "rows")
    print_table(("exported", "number"), rows, right=("number",))
    for place in manifest.bad_records[:10]:
        write(f"bad record: partition {place.partition}, offset {place.offset}: {place.error}")
    if manifest.left_out:
        write(f"fields without a column: {', '.join(manifest.left_out)}")


def _manifest_json(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Return the manifest as JSON without its long lists."""
    import orjson

    short = replace(manifest, files=(), bad_records=manifest.bad_records[:10])
    document: dict[str, dict[str, int]] = orjson.loads(short.to_json())
    del document["digest"]["ranges"], document["files"]
    return document

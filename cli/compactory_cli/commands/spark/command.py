"""``compactory spark``: jobs on Spark. What takes long to import is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...context.flags import Flags, argument, command, flag, option
from ...context.loading import Providers
from ...context.session import begin, refuse

if TYPE_CHECKING:
    from compactory_connectors.spark.session import SparkOptions

__all__ = ["Conf", "Format", "Jars", "Master", "app", "spark_options"]

app = typer.Typer(name="spark", help="Load and export directories of any size with Apache Spark.", no_args_is_help=True)

Master = Annotated[
    str | None,
    option(
        "--master", "MASTER", "Spark's master URL, as in spark-submit; default: that of spark-submit, else local[*]."
    ),
]
Conf = Annotated[list[str] | None, option("--conf", "KEY=VALUE", "A property of Spark; may be repeated.")]
Jars = Annotated[
    Path | None,
    option(
        "--jars",
        "DIR",
        "A folder of JDBC drivers in place of Postgres', which is fetched; default: COMPACTORY_SPARK_JARS.",
    ),
]


Format = Literal["parquet", "orc", "csv", "json"]


def spark_options(master: str | None, conf: list[str] | None, jars: Path | None) -> SparkOptions:
    """How Spark runs. Raises ConfigError for a property that is none."""
    from compactory_connectors.spark.session import SparkOptions

    properties = {}
    for text in conf or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            refuse(f"--conf {text}: must be KEY=VALUE, such as spark.sql.shuffle.partitions=64")
        properties[name] = value
    return SparkOptions(master=master, conf=properties, jars=jars)


@app.command("load")
@command
def load(
    flags: Flags,
    sources: Annotated[list[str], argument("SOURCE…", "Files, globs or folders; or a JDBC URL with --table.")],
    directory: Annotated[str, option("--directory", "NAME", "A directory of compactory.toml, a table or a topic.")],
    to: Annotated[
        Literal["postgres", "kafka"],
        option("--to", help="Write into the directory's table, or directly into its topic."),
    ],
    rules: Annotated[
        Path | None,
        option("--rules", "FILE", "YAML file: the field for each column, and the rules for rows."),
    ] = None,
    mode: Annotated[
        Literal["upsert", "replace"],
        option("--mode", help="replace deactivates keys missing from the source."),
    ] = "upsert",
    dry_run: Annotated[
        bool, flag("--dry-run", "Show what would change, with examples; write nothing but rejects.")
    ] = False,
    rejects: Annotated[str | None, option("--rejects", "DIR", "A folder for rejected rows.")] = None,
    max_rejects: Annotated[
        str | None,
        option(
            "--max-rejects",
            "N|N%",
            "Load nothing if more rows are rejected; default: 0 without --rejects, else no limit.",
        ),
    ] = None,
    max_deactivate: Annotated[
        str | None,
        option(
            "--max-deactivate", "N|N%", "Load nothing if more keys are missing; default: the connector's limit, or 20%."
        ),
    ] = None,
    load_id: Annotated[
        str | None,
        option("--load-id", "ID", "Load into Postgres only once under this id; default: a new id."),
    ] = None,
    report: Annotated[
        Path | None, option("--report", "FILE", "Write a JSON report, also of a load that fails.")
    ] = None,
    form: Annotated[
        Format | None,
        option("--format", help="Format of the files; default: by the ending of their names."),
    ] = None,
    table: Annotated[str | None, option("--table", "TABLE", "The table behind a JDBC URL.")] = None,
    provider: Providers = None,
    master: Master = None,
    conf: Conf = None,
    jars: Jars = None,
) -> None:
    """Load files or a table into a directory: checked row by row, compared, and written as a whole or not at all.

    Exit code 0: done, or done before under this id. 1: a limit refused the load, or a step failed; nothing was written.
    2: bad usage, rules or files that do not fit. 3: Postgres, Kafka or a file system was not reached. 4: a source owns
    the topic.
    """
    from .load import LoadCommand

    configuration = begin(flags)
    LoadCommand(
        configuration=configuration,
        sources=sources,
        directory=directory,
        to=to,
        rules=rules,
        mode=mode,
        dry_run=dry_run,
        rejects=rejects,
        max_rejects=max_rejects,
        max_deactivate=max_deactivate,
        load_id=load_id,
        report=report,
        format=form,
        table=table,
        provider=provider or [],
        options=spark_options(master, conf, jars),
        as_json=flags.json,
    ).run()

"""``compactory spark``: jobs on Spark. Slow imports are inside functions."""

from __future__ import annotations

import typer

from ...context.flags import Flags, command
from ...context.session import begin
from .arguments import LoadArguments, SparkArguments

__all__ = ["app"]

app = typer.Typer(name="spark", help="Load and export directories of any size with Apache Spark.", no_args_is_help=True)


@app.command("load")
@command
def run_load(flags: Flags, arguments: LoadArguments, spark: SparkArguments) -> None:
    """Load files or a table into a directory: checked row by row, compared, and written as a whole or not at all.

    Exit code 0: done, or done before under this id. 1: a limit refused the load, or a step failed; nothing was written.
    2: bad usage, rules or files that do not fit. 3: Postgres, Kafka or a file system was not reached. 4: a source owns
    the topic.
    """
    from .load import LoadCommand

    configuration = begin(flags)
    LoadCommand(configuration=configuration, options=spark.options(), as_json=flags.json, **vars(arguments)).run()

"""``compactory``: adds the commands to one app and turns their outcome into an exit code."""

from __future__ import annotations

import sys

import typer
from typer.core import TyperGroup

from .commands import directories, errors, jobs, outbox, process, serve, sink, source, sql, topic, verify
from .commands.spark import command as spark
from .context.flags import App, root
from .demo import command as demo

__all__ = ["app", "run_app"]

app = App(
    name="compactory",
    help="Reference directories at memory speed: Postgres tables → compacted Kafka topics → lookups.",
    cls=TyperGroup,
    add_completion=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
)

app.callback()(root)
app.command("get")(directories.get)
app.command("put")(directories.put)
app.command("delete")(directories.delete)
app.command("watch")(directories.watch)
app.command("directories")(directories.directories)
app.command("errors")(errors.list_errors)
app.command("serve")(serve.serve)
app.command("console")(serve.run_console)
app.command("verify")(verify.verify_tables)
app.add_typer(source.app)
app.add_typer(jobs.app)
app.add_typer(outbox.app)
app.add_typer(process.app)
app.add_typer(sink.app)
app.add_typer(spark.app)
app.add_typer(sql.app)
app.add_typer(topic.app)
app.add_typer(demo.app)


def run_app() -> None:
    """Run the command line and exit: the entry point of the ``compactory`` script."""
    sys.exit(_run())


def _run() -> int:
    try:
        return app(prog_name="compactory", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):  # Ctrl-C, or a question that was answered with no
        return 130  # what a shell reports for Ctrl-C
    except Exception as error:
        from .context.failure import exit_code_of, report  # with all that it imports, only when something went wrong

        if (code := exit_code_of(error)) is None:
            raise
        return report(error, code, as_json="--json" in sys.argv[1:])
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader of our output went away, as head does
            return 0
        raise

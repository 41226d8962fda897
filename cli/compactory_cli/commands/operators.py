"""The options and outputs that the commands of operators share: ``--by``, pauses, the operator log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import App, argument, flag, option
from ..views.tables import Column, Table, print_tables, time_text
from ..views.terminal import answer, number, warn

if TYPE_CHECKING:
    from compactory_connectors.postgres.operator_log import LogLine
    from compactory_connectors.postgres.pausing import Paused

__all__ = [
    "By",
    "Limit",
    "Yes",
    "add_log",
    "add_pausing",
    "show_change",
    "show_failed",
    "show_lines",
    "table_of_pauses",
]

_NOUNS = {"jobs": "type", "job-groups": "group", "outbox": "topic", "sink": "sink"}
_PAUSES = (
    Column("paused", None, lambda pause: f"{_NOUNS[pause.part]} {pause.name}"),
    Column("since", time_text),
    Column("by"),
)
_LINES = (
    Column("at", time_text),
    Column("who"),
    Column("action"),
    Column("object", lambda values: ", ".join(f"{name} {value}" for name, value in values.items())),
    Column("count", number, right=True),
)

By = Annotated[str | None, option("--by", "NAME", "Who acts, for the operator log. Default: the user of this process.")]
Limit = Annotated[int, option("--limit", "N", "Largest number of lines to show, newest first.", min=1)]
Yes = Annotated[bool, flag("--yes", "Do not ask.", "-y")]
_Name = Annotated[str, argument("NAME", "Its name.")]

Connect = Callable[[], AbstractContextManager[Any]]
"""Opens what the functions of operators take first: a connection to the database, or the cluster."""


def add_pausing(app: App, connect: Connect, noun: str, effect: str, example: str) -> None:
    """Add ``pause NAME`` and ``resume NAME``; ``effect`` says what a pause does."""
    _add_pausing(app, connect, noun, "pause", "paused", f"Pause a {noun}: {effect}", example)
    _add_pausing(app, connect, noun, "resume", "running", f"Resume a {noun} that is paused.", example)


def _add_pausing(app: App, connect: Connect, noun: str, verb: str, outcome: str, text: str, example: str) -> None:
    @app.command(verb, help=f"{text}\n\nExample: `compactory {app.info.name} {verb} {example}`")
    def change(name: _Name, by: By = None) -> None:
        package = {"process": "processors"}.get(part := str(app.info.name), part)
        operators = import_module(f"compactory_connectors.{package}.operators")
        with connect() as target:
            result = getattr(operators, verb)(target, name, by=by)
        show_change(f"{noun} {name}", outcome, result)


def show_change(subject: str, outcome: str, result: bool | tuple[bool, str | None]) -> None:
    """Print that something is paused or resumed, or that it was before. ``result`` may have a warning."""
    has_changed, warning = result if isinstance(result, tuple) else (result, None)
    if warning is not None:
        warn(warning)
    text = f"{subject} is {outcome}" if has_changed else f"{subject} was {outcome} before; nothing was changed"
    answer({"name": subject, outcome: True, "changed": has_changed}, text)


def table_of_pauses(pauses: Sequence[Paused]) -> Table:
    """Return what is paused as a table."""
    return Table("paused", pauses, _PAUSES)


def show_failed(name: str, items: Sequence[Any], columns: Sequence[Column]) -> None:
    """Print records or messages that are set aside. Exit code 1 if there are any."""
    print_tables(Table(name, items, columns, f"no {name.removesuffix('s')} is set aside"))
    if items:
        raise typer.Exit(1)


def add_log(app: App, connect: Connect, objects: str) -> None:
    """Add ``log``: the operator log of a part in Postgres."""
    part = str(app.info.name)

    @app.command("log", help=_LOG_HELP.format(part=part, objects=objects))
    def show_log(limit: Limit = 100) -> None:
        from compactory_connectors.postgres.operator_log import operator_log

        with connect() as connection:
            show_lines(operator_log(connection, part, limit))


_LOG_HELP = """Show what operators have done to {objects} in the last 90 days: who, what and how many.

Example: `compactory {part} log --limit 20`"""


def show_lines(lines: Sequence[LogLine]) -> None:
    """Print lines of the operator log."""
    print_tables(Table("lines", lines, _LINES, "no operator has changed anything yet"))

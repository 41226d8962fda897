"""What the commands of operators have in common: ``--by``, pauses and the operator log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

from ..context.flags import Flags, option
from ..views.tables import Column, Table, print_tables, time_text
from ..views.terminal import answer, number, warn

if TYPE_CHECKING:
    import psycopg

    from compactory_connectors.postgres.operator_log import LogLine
    from compactory_connectors.postgres.pausing import Paused

__all__ = ["By", "Limit", "show_change", "show_lines", "show_log", "table_of_pauses"]

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


def show_change(flags: Flags, subject: str, outcome: str, has_changed: bool, warning: str | None = None) -> None:
    """Print that something is paused or resumed, or that it was before."""
    if warning is not None:
        warn(warning)
    text = f"{subject} is {outcome}" if has_changed else f"{subject} was {outcome} before; nothing was changed"
    answer({"name": subject, outcome: True, "changed": has_changed}, text, as_json=flags.json)


def show_log(flags: Flags, connection: AbstractContextManager[psycopg.Connection[Any]], part: str, limit: int) -> None:
    """Print the newest lines of the operator log of one part."""
    from compactory_connectors.postgres.operator_log import operator_log

    with connection as opened:
        show_lines(flags, operator_log(opened, part, limit))


def show_lines(flags: Flags, lines: Sequence[LogLine]) -> None:
    """Print lines of the operator log."""
    print_tables(Table("lines", lines, _LINES, "no operator has changed anything yet"), as_json=flags.json)


def table_of_pauses(pauses: Sequence[Paused]) -> Table:
    """Return what is paused as a table."""
    return Table("paused", pauses, _PAUSES)

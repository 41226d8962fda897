"""What the commands of operators have in common: ``--by``, pauses and the operator log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

from ..context.flags import Flags, option
from ..views.terminal import answer, number, print_json, print_table, warn, write

if TYPE_CHECKING:
    import psycopg

    from compactory_connectors.postgres.operator_log import LogLine
    from compactory_connectors.postgres.pausing import PausableKind, Paused

__all__ = ["By", "Limit", "show_change", "show_lines", "show_log", "show_pauses"]

By = Annotated[str | None, option("--by", "NAME", "Who acts, for the operator log. Default: the user of this process.")]
Limit = Annotated[int, option("--limit", "N", "Largest number of lines to show, newest first.", min=1)]


def show_change(flags: Flags, what: str, outcome: str, has_changed: bool, warning: str | None = None) -> None:
    """Print that something is paused or resumed, or that it was before."""
    if warning is not None:
        warn(warning)
    text = f"{what} is {outcome}" if has_changed else f"{what} was {outcome} before; nothing was changed"
    answer({"name": what, outcome: True, "changed": has_changed}, text, as_json=flags.json)


def show_log(flags: Flags, connection: AbstractContextManager[psycopg.Connection[Any]], part: str, limit: int) -> None:
    """Print the newest lines of the operator log of one part."""
    from compactory_connectors.postgres.operator_log import operator_log

    with connection as opened:
        show_lines(flags, operator_log(opened, part, limit))


def show_lines(flags: Flags, lines: Sequence[LogLine]) -> None:
    """Print lines of the operator log."""
    if flags.json:
        print_json({"lines": [line.fields() for line in lines]})
        return
    print_table(
        ("at", "who", "action", "object", "count"),
        (
            (
                f"{line.at:%Y-%m-%d %H:%M:%S}", line.who, line.action,
                ", ".join(f"{name} {value}" for name, value in line.object.items()), number(line.count),
            )
            for line in lines
        ),
        right=("count",),
        none="no operator has changed anything yet",
    )  # fmt: skip


def show_pauses(pauses: Sequence[Paused]) -> None:
    """Print a line for each pause."""
    nouns: dict[PausableKind, str] = {"jobs": "type", "job-groups": "group", "outbox": "topic", "sink": "sink"}
    for item in pauses:
        write(f"{nouns[item.part]} {item.name} is paused since {item.since:%Y-%m-%d %H:%M:%S}, by {item.by}")

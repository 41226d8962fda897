"""``compactory directories``: directories with their entries, lag and load time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import argument
from ..context.session import begin
from ..views.tables import Column, Table, bold, print_tables, red_if_any
from ..views.terminal import marked, number, output, seconds, wants_json

if TYPE_CHECKING:
    from compactory import Directory

    from ..context.configuration import Configuration

__all__ = ["directories"]

_NAMES = (Column("name", bold), Column("topic"))
_COUNTS = (
    Column("entries", number, right=True),
    Column("partitions", right=True),
    Column("lag", number, right=True),
    Column("bad records", red_if_any, right=True),
)
_LOADED = (*_NAMES, *_COUNTS, Column("load time", seconds, "load_seconds", right=True))
_STATE = Column("state", None, lambda row: marked("yellow", row["state"]) if row.get("stale") else row["state"])
_SERVED = (*_NAMES, _STATE, *_COUNTS, Column("age", seconds, "age_seconds", right=True))


def directories(
    names: Annotated[list[str] | None, argument("[DIRECTORY…]", "Directories (default: all), or topics.")] = None,
) -> None:
    """List directories: entries, partitions, lag, bad records, load time.

    Loads the named directories, or all of compactory.toml. If COMPACTORY_URL is set, it asks that server for the named
    directories, or for all of the server's, with their state and age, and why data is old. Exits with 1 if there are
    bad records.

    Example: `compactory directories --json`
    """
    configuration = begin()
    named = names or []
    rows = configuration.server().directories(named) if configuration.url else _read_all(configuration, named)
    print_tables(Table("directories", rows, _SERVED if configuration.url else _LOADED, ""))
    for row in () if wants_json() else rows:
        if row.get("stale"):
            output().print(marked("bold", row["name"]), f"is old: {row['stale']}", markup=False, highlight=False)
        if row.get("unusable"):
            output().print(marked("bold red", f"{row['name']}:"), row["unusable"], markup=False, highlight=False)
    if any(row.get("bad_records") for row in rows):
        raise typer.Exit(1)


def _read_all(configuration: Configuration, names: list[str]) -> list[dict[str, Any]]:
    from ..context.reading import resolve

    chosen = configuration.chosen(names, "directories")
    return [_read_one(configuration, directory) for directory in resolve(configuration, chosen)]


def _read_one(configuration: Configuration, directory: Directory[Any]) -> dict[str, Any]:
    """Return the row of a directory, loaded alone so that its load time is right."""
    from ..context.reading import read

    started_at = time.perf_counter()
    with read(configuration, [directory]) as store:
        load_seconds = time.perf_counter() - started_at
        positions = store.positions()
        return {
            "name": directory.name,
            "topic": directory.topic,
            "entries": len(store[directory.name]),
            "partitions": len(positions),
            "lag": sum(end - positions[part] for part, end in store.end_offsets().items() if part in positions),
            "bad_records": store.outstanding()[directory.name],
            "unusable": store.unusable().get(directory.name),
            "load_seconds": round(load_seconds, 4),
        }

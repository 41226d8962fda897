"""``compactory directories``: directories with their entries, lag and load time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import Flags, argument, command
from ..context.session import begin
from ..views.terminal import alarming, marked, number, output, print_json, print_table, seconds

if TYPE_CHECKING:
    from compactory import Directory

    from ..context.configuration import Configuration

__all__ = ["directories"]


@command
def directories(
    flags: Flags,
    names: Annotated[
        list[str] | None, argument("[DIRECTORY…]", "Directories of compactory.toml or of the server, or topics.")
    ] = None,
) -> None:
    """List directories: entries, partitions, lag, bad records, load time.

    Loads the named directories, or all of compactory.toml. If COMPACTORY_URL is set, it asks that server for the named
    directories, or for all of the server's, with their state and age, and why data is old. Exits with 1 if there are
    bad records.

    Example: `compactory directories --json`
    """
    configuration = begin(flags)
    named = names or []
    rows = configuration.server().directories(named) if configuration.url else _read_all(configuration, named)
    if flags.json:
        print_json({"directories": rows})
    else:
        _print_directories(rows, remote=configuration.url is not None)
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


def _print_directories(rows: list[dict[str, Any]], *, remote: bool) -> None:
    state = ("state",) if remote else ()
    right = ("entries", "partitions", "lag", "bad records", "age" if remote else "load time")
    print_table(("name", "topic", *state, *right), (_directory_row(row, remote=remote) for row in rows), right=right)
    for row in rows:
        if row.get("stale"):
            output().print(marked("bold", row["name"]), f"is old: {row['stale']}", markup=False, highlight=False)
        if row.get("unusable"):
            output().print(marked("bold red", f"{row['name']}:"), row["unusable"], markup=False, highlight=False)


def _directory_row(row: dict[str, Any], *, remote: bool) -> Iterator[object]:
    duration = row.get("age_seconds") if remote else row["load_seconds"]
    yield marked("bold", row["name"])
    yield row["topic"]
    if remote:
        yield marked("yellow", row["state"]) if row.get("stale") else row["state"]
    yield number(row["entries"]) if row["entries"] is not None else None
    yield row["partitions"]
    yield number(row["lag"])
    yield alarming(row["bad_records"]) if row.get("bad_records") is not None else None  # older servers do not send it
    yield seconds(duration) if duration is not None else None

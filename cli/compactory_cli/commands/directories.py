"""``compactory directories``: every directory, how much it holds and how long it took to load."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import Flags, argument, command
from ..views.terminal import number, output, print_json, seconds, table

if TYPE_CHECKING:
    from compactory import Directory

    from ..context.configuration import Configuration

__all__ = ["directories"]


@command
def directories(
    flags: Flags,
    names: Annotated[
        list[str] | None, argument(metavar="[DIRECTORY…]", help="Directories of compactory.toml, or topics.")
    ] = None,
) -> None:
    """List directories: entries, partitions, lag, bad records, load time.

    Loads the named directories, or all of compactory.toml. If COMPACTORY_URL is set, it asks that server, which
    also tells state and age, and why data is old. Exits with 1 if there are bad records.
    """
    from ..context.session import begin

    configuration = begin(flags)
    rows = _ask(configuration) if configuration.url else _load(configuration, names or [])
    if flags.json:
        print_json({"directories": rows})
    else:
        _print(rows, remote=configuration.url is not None)
    if any(row.get("bad_records") for row in rows):
        raise typer.Exit(1)


def _load(configuration: Configuration, names: list[str]) -> list[dict[str, Any]]:
    from ..context.reading import resolve

    chosen = configuration.chosen(names, "directories")
    return [_loaded(configuration, directory) for directory in resolve(configuration, chosen)]


def _loaded(configuration: Configuration, directory: Directory[Any]) -> dict[str, Any]:
    """One directory, loaded by itself so that its time is its own."""
    from ..context.reading import read

    began = time.perf_counter()
    with read(configuration, [directory]) as store:
        took = time.perf_counter() - began
        positions = store.positions()
        return {
            "name": directory.name,
            "topic": directory.topic,
            "entries": len(store[directory.name]),
            "partitions": len(positions),
            "lag": sum(end - positions[part] for part, end in store.end_offsets().items() if part in positions),
            "bad_records": store.outstanding()[directory.name],
            "unusable": store.unusable().get(directory.name),
            "load_seconds": round(took, 4),
        }


def _ask(configuration: Configuration) -> list[dict[str, Any]]:
    from ..context.remote import Server

    return Server(configuration.url or "", configuration.tokens.any).directories()


def _print(rows: list[dict[str, Any]], *, remote: bool) -> None:
    from rich.markup import escape

    right = ("entries", "partitions", "lag", "bad records", "age" if remote else "load time")
    shown = table("name", "topic", *(("state",) if remote else ()), *right, right=right)
    for row in rows:
        duration = row.get("age_seconds") if remote else row["load_seconds"]
        shown.add_row(
            f"[bold]{row['name']}[/]",
            row["topic"],
            *((f"[yellow]{row['state']}[/]" if row.get("stale") else str(row["state"]),) if remote else ()),
            number(row["entries"]) if row["entries"] is not None else "–",
            str(row["partitions"]),
            number(row["lag"]),
            _bad(row),
            seconds(duration) if duration is not None else "–",
        )
    output().print(shown)
    for row in rows:
        name = escape(row["name"])
        if row.get("stale"):
            output().print(f"[bold]{name}[/] is old: {escape(row['stale'])}", highlight=False)
        if row.get("unusable"):
            output().print(f"[bold red]{name}[/]: {escape(row['unusable'])}", highlight=False)


def _bad(row: dict[str, Any]) -> str:
    bad = row.get("bad_records")  # older servers do not tell
    return "–" if bad is None else f"[red]{number(bad)}[/]" if bad else "0"

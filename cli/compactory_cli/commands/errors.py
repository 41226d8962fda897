"""``compactory errors``: lists, retries and skips bad records."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import argument, flag, option
from ..context.session import begin, refuse
from ..views.moment import moment_text
from ..views.tables import Column, Table, bold, print_tables
from ..views.terminal import answer, fields, number, wants_json, write

if TYPE_CHECKING:
    from compactory import QuarantinedRecord

    from ..context.configuration import Configuration

__all__ = ["list_errors"]

_RECORDS = (
    Column("directory", bold),
    Column("partition", right=True),
    Column("offset", right=True),
    Column("error"),
    Column("written", lambda ms: moment_text(ms * 1000) if ms >= 0 else None, "timestamp_ms"),
)

_Place = tuple[str, int, int]  # directory, partition, offset


def list_errors(
    names: Annotated[list[str] | None, argument("[DIRECTORY…]", "Only these directories; default: all.")] = None,
    places: Annotated[
        list[str] | None,
        option("--place", "DIRECTORY:PARTITION:OFFSET", "Only the record at this place; repeatable."),
    ] = None,
    retry: Annotated[bool, flag("--retry", "The server applies the records again.")] = False,
    skip: Annotated[bool, flag("--skip", "The server drops the records.")] = False,
) -> None:
    """List bad records: the store can't apply them, and no newer record of their key has replaced them.

    Asks the server at COMPACTORY_URL, or reads the topics. With COMPACTORY_HTTP_ADMIN_TOKEN the server also shows keys
    and values, retries and skips. Exit code 1 if a retried record is still bad.

    Example: `compactory errors terminal_acquirer --retry`
    """
    configuration = begin()
    selected = _parse_places(places or [])
    if retry and skip:
        refuse("--retry and --skip contradict each other; give one")
    if retry or skip:
        _resolve_records(configuration, names or [], selected, "retry" if retry else "skip")
        return
    listed, outstanding = _read_records(configuration, names or [], selected)
    records = _select_records(listed, names or [], selected)
    print_tables(Table("errors", records, _RECORDS, "no bad records"), outstanding=outstanding)
    if outstanding > len(listed) and not wants_json():
        write(f"the newest {number(len(listed))} of {number(outstanding)} were looked at")


def _parse_places(texts: Iterable[str]) -> set[_Place]:
    places: set[_Place] = set()
    problems = []
    for text in texts:
        directory, *numbers = text.rsplit(":", 2)
        if directory and len(numbers) == 2 and all(part.isascii() and part.isdigit() for part in numbers):
            places.add((directory, int(numbers[0]), int(numbers[1])))
        else:
            problems.append(f"--place {text}: must be DIRECTORY:PARTITION:OFFSET, such as terminal_acquirer:0:42")
    if problems:
        refuse(problems)
    return places


def _read_records(
    configuration: Configuration, names: Sequence[str], selected: set[_Place], *, orders: bool = False
) -> tuple[list[dict[str, Any]], int]:
    """Return bad records of the server or of the directories' topics, and the number of all."""
    if configuration.url:
        server = configuration.server(admin=True, orders=orders)
        server.directories([*names, *(place[0] for place in selected)])
        return server.errors()
    from ..context.reading import read, resolve

    chosen_names = configuration.chosen([*names, *sorted(place[0] for place in selected)], "errors")
    with read(configuration, resolve(configuration, chosen_names)) as store:
        records = [_record_json(error) for error in store.quarantine()]
    return records, len(records)


def _record_json(error: QuarantinedRecord) -> dict[str, Any]:
    raw = {"key_base64": _base64(error.key), "value_base64": _base64(error.value)}
    return fields(error, "directory", "topic", "partition", "offset", "timestamp_ms", "error", "stacktrace") | raw


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _select_records(records: list[dict[str, Any]], names: Sequence[str], selected: set[_Place]) -> list[dict[str, Any]]:
    """Return the records of these directories and places; all if neither is given."""
    return [
        record
        for record in records
        if not (names or selected)
        or record["directory"] in names
        or (record["directory"], record["partition"], record["offset"]) in selected
    ]


def _resolve_records(configuration: Configuration, names: Sequence[str], selected: set[_Place], verb: str) -> None:
    if not configuration.url:
        refuse(f"--{verb} is about a server's bad records: set COMPACTORY_URL")
    if verb == "skip" and not names and not selected:
        refuse("--skip drops records for good: name directories, or records by --place")
    places = None
    if names or selected:
        listed, _ = _read_records(configuration, names, selected, orders=True)
        records = _select_records(listed, names, selected)
        places = [{name: record[name] for name in ("directory", "partition", "offset")} for record in records]
    result = configuration.server(orders=True).resolve(verb, places)
    participle = "applied" if verb == "retry" else "dropped"
    answer(result, f"{number(result['done'])} {participle}, {number(result['outstanding'])} outstanding")
    unresolved = result["outstanding"] if places is None else len(places) - result["done"]
    if verb == "retry" and unresolved > 0:
        raise typer.Exit(1)

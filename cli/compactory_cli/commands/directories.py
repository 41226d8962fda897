"""``compactory get|put|delete|watch|directories``: entries of directories, through a server or from the topics.

As in all commands, slow imports are inside functions, so that --help answers at once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.failure import StepFailed
from ..context.flags import argument, flag, option
from ..context.session import begin, refuse
from ..views.tables import Column, Table, bold, print_tables, red_if_any
from ..views.terminal import (
    answer,
    counted,
    fields,
    json_or_text,
    marked,
    number,
    output,
    print_json,
    printable,
    seconds,
    wants_json,
    write,
)

if TYPE_CHECKING:
    from compactory import Directory, Entry
    from compactory_client import Entries

    from ..context.configuration import Configuration

__all__ = ["delete", "directories", "get", "put", "watch"]

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

_Name = Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")]
_MasteredName = Annotated[str, argument("DIRECTORY", 'A directory with mastered = "kafka".')]
_Key = Annotated[str, argument("KEY", "The entry's key.")]
_IfMatch = Annotated[str | None, option("--if-match", "ETAG", "Write only if the entry has this ETag.")]


def get(directory: _Name, key: _Key) -> None:
    """Print the entry of a key.

    Reads the topic to its end and looks the key up, or asks the server at COMPACTORY_URL.

    Example: `compactory get terminal_acquirer T42 --kafka localhost:9092`
    """
    configuration = begin()
    entry = (
        configuration.server().entry(directory, key)
        if configuration.url
        else _read_entry(configuration, directory, key)
    )
    value = json_or_text(entry.value)
    if wants_json():
        place = fields(entry, "topic", "partition", "offset")
        timestamp = entry.timestamp_ms if entry.timestamp_ms >= 0 else None
        print_json({"key": key, "value": value, **place, "timestamp_ms": timestamp})
    elif isinstance(value, str):
        write(value)
    else:
        output().print_json(data=value)


def _read_entry(configuration: Configuration, name: str, key: str) -> Entry:
    from compactory import BadRecord

    from ..context.reading import read, resolve

    [directory] = resolve(configuration, [name])
    with read(configuration, [directory]) as store:
        view = store[directory.name]
        try:
            return view.entry(key)
        except BadRecord:
            raise
        except KeyError:
            by = f"field {directory.key!r}" if directory.key else "the record's key"
            example = next((f", such as {existing!r}" for existing in view), "")
            looked_up = f"{counted(len(view), 'entry', 'entries')}, looked up by {by}{example}"
            raise StepFailed(f"no entry {key!r} in directory {directory.name!r}: {looked_up}") from None


def put(
    directory: _MasteredName,
    key: _Key,
    value: Annotated[str, argument("VALUE", "A JSON object; - reads it from standard input.")],
    merge: Annotated[bool, flag("--merge", "Merge VALUE into the entry (RFC 7396).")] = False,
    create: Annotated[bool, flag("--create", "Write only if the key has no entry.")] = False,
    if_match: _IfMatch = None,
) -> None:
    """Create, replace or change an entry, through the server at COMPACTORY_URL.

    Example: `compactory put tenants t1 '{"email": "a@example.org"}' --create`
    """
    if merge and create:
        refuse("--merge needs an entry and --create needs that there is none: give one of them")
    document = _parse_document(sys.stdin.read() if value == "-" else value)
    with _entries(directory) as entries:
        if merge:
            stored = entries.patch(key, document, if_match=if_match)
        else:
            stored = entries.put(key, document, if_match=if_match, create=create)
    if wants_json():
        print_json({"key": stored.key, "value": stored.value, "etag": stored.etag, "offset": str(stored.token)})
    else:
        output().print_json(data=stored.value)


def delete(directory: _MasteredName, key: _Key, if_match: _IfMatch = None) -> None:
    """Remove an entry, through the server at COMPACTORY_URL.

    Example: `compactory delete tenants t1`
    """
    with _entries(directory) as entries:
        token = entries.delete(key, if_match=if_match)
    answer({"key": key, "offset": str(token)}, f"removed, at {token}")


def _parse_document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse(f"VALUE: is not JSON: {error}")
    if not isinstance(document, dict):
        refuse(f"VALUE: must be a JSON object, not {type(document).__name__}")
    return document


@contextmanager
def _entries(directory: str) -> Iterator[Entries[dict[str, Any]]]:
    from compactory_client import Client

    configuration = begin()
    if configuration.url is None:
        refuse("which server? only servers write: set COMPACTORY_URL, such as http://127.0.0.1:8080")
    tokens = configuration.tokens
    with Client(configuration.url, token=tokens.write or tokens.admin or tokens.read) as client:
        yield client.directory(directory)


def watch(
    directory: _Name,
    since: Annotated[str | None, option("--since", "CURSOR", "Begin after this cursor of a line of --json.")] = None,
    prefix: Annotated[str, option("--prefix", "TEXT", "Only keys that begin with this.")] = "",
) -> None:
    """Print the changes of a directory as they come, until Ctrl-C.

    Reads the topic to its end and goes on from there, or asks the server at COMPACTORY_URL. Only a server keeps former
    changes for --since. With --json a line has key, old and new value, place and cursor. Exits with 1 if changes since
    the cursor are gone; the message has the cursor to go on from.

    Example: `compactory watch tariffs --prefix eu- --json`
    """
    configuration = begin()
    arguments = directory, since, prefix
    for change in (
        configuration.server().changes(*arguments) if configuration.url else _read_changes(configuration, *arguments)
    ):
        if wants_json():
            print_json(change)
        elif change["kind"] == "delete":
            write(f"delete {printable(change['key'])}")
        else:
            value = change["new"] if isinstance(change["new"], str) else json.dumps(change["new"], ensure_ascii=False)
            write(f"{change['kind']:6} {printable(change['key'])} {printable(value)}")


def _read_changes(configuration: Configuration, name: str, since: str | None, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the changes of a topic as a server sends them."""
    from compactory import Cursor

    from ..context.reading import read, resolve

    cursor = None if since is None else Cursor.parse(since)
    with read(configuration, resolve(configuration, [name])) as store:
        for change in store[name].watch(cursor):
            if change.key.startswith(prefix):
                values = {"old": json_or_text(change.raw_old), "new": json_or_text(change.raw)}
                place = fields(change, "partition", "offset", "timestamp_ms")
                yield fields(change, "kind", "key") | values | place | {"cursor": str(change.cursor)}


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

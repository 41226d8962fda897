"""``compactory watch``: prints the changes of a directory as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from ..context.flags import argument, option
from ..context.session import begin
from ..views.terminal import fields, json_or_text, print_json, printable, wants_json, write

if TYPE_CHECKING:
    from compactory import Change

    from ..context.configuration import Configuration

__all__ = ["watch"]


def watch(
    directory: Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")],
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
        else:
            value = "" if change["kind"] == "delete" else f" {_text(change['new'])}"
            write(f"{change['kind']:6} {printable(change['key'])}{value}")


def _read_changes(configuration: Configuration, name: str, since: str | None, prefix: str) -> Iterator[dict[str, Any]]:
    from compactory import Cursor

    from ..context.reading import read, resolve

    cursor = None if since is None else Cursor.parse(since)
    with read(configuration, resolve(configuration, [name])) as store:
        for change in store[name].watch(cursor):
            if change.key.startswith(prefix):
                yield _watch_json(change)


def _watch_json(change: Change[Any]) -> dict[str, Any]:
    """Return a change as a server sends it."""
    values = {"old": json_or_text(change.raw_old), "new": json_or_text(change.raw)}
    place = fields(change, "partition", "offset", "timestamp_ms")
    return fields(change, "kind", "key") | values | place | {"cursor": str(change.cursor)}


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

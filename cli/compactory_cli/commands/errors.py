"""``compactory errors``: bad records; list them, have them applied once more, let go of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import Flags, argument, command, flag, option
from ..context.session import begin, refuse
from ..views.terminal import answer, fields, marked, number, print_json, print_table, write

if TYPE_CHECKING:
    from compactory import QuarantinedRecord

    from ..context.configuration import Configuration

__all__ = ["errors"]

_Place = tuple[str, int, int]  # directory, partition, offset


@command
def errors(
    flags: Flags,
    names: Annotated[
        list[str] | None, argument("[DIRECTORY…]", "Only bad records of these directories; default: all.")
    ] = None,
    places: Annotated[
        list[str] | None,
        option("--place", "DIRECTORY:PARTITION:OFFSET", "Only the record at this place; may be repeated."),
    ] = None,
    retry: Annotated[bool, flag("--retry", "Let the server apply them again.")] = False,
    skip: Annotated[bool, flag("--skip", "Let the server drop them.")] = False,
) -> None:
    """List bad records: the store can't apply them, and no newer record of their key has replaced them.

    Asks the server at COMPACTORY_URL (with COMPACTORY_HTTP_ADMIN_TOKEN it tells more, and may retry and skip), or reads
    the topics. Exit code 1 if a retried record is still bad.
    """
    configuration = begin(flags)
    only = _only(places or [])
    if retry or skip:
        _resolve(configuration, names or [], only, "retry" if retry else "skip", flags, both=retry and skip)
        return
    listed, outstanding = _listed(configuration, names or [], only)
    found = _chosen(listed, names or [], only)
    if flags.json:
        print_json({"errors": found, "outstanding": outstanding})
        return
    _print(found)
    if outstanding > len(listed):
        write(f"the newest {number(len(listed))} of {number(outstanding)} were looked at")


def _only(texts: Iterable[str]) -> set[_Place]:
    found: set[_Place] = set()
    wrong = []
    for text in texts:
        directory, *numbers = text.rsplit(":", 2)
        if directory and len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
            found.add((directory, int(numbers[0]), int(numbers[1])))
        else:
            wrong.append(f"--place {text}: must be DIRECTORY:PARTITION:OFFSET, such as terminal_acquirer:0:42")
    if wrong:
        refuse(wrong)
    return found


def _listed(
    configuration: Configuration, names: Sequence[str], only: set[_Place], *, orders: bool = False
) -> tuple[list[dict[str, Any]], int]:
    """Bad records of the server, or of the topics of these directories; how many there are in all."""
    if configuration.url:
        server = configuration.server(admin=True, orders=orders)
        server.directories([*names, *(place[0] for place in only)])
        return server.errors()
    from ..context.reading import read, resolve

    wanted = configuration.chosen([*names, *sorted(place[0] for place in only)], "errors")
    with read(configuration, resolve(configuration, wanted)) as store:
        found = [_described(error) for error in store.quarantine()]
    return found, len(found)


def _described(error: QuarantinedRecord) -> dict[str, Any]:
    raw = {"key_base64": _base64(error.key), "value_base64": _base64(error.value)}
    return fields(error, "directory", "topic", "partition", "offset", "timestamp_ms", "error", "stacktrace") | raw


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _chosen(found: list[dict[str, Any]], names: Sequence[str], only: set[_Place]) -> list[dict[str, Any]]:
    """Those of the directories named and of the places; all of them where neither is given."""
    return [
        each
        for each in found
        if not (names or only)
        or each["directory"] in names
        or (each["directory"], each["partition"], each["offset"]) in only
    ]


def _resolve(
    configuration: Configuration, names: Sequence[str], only: set[_Place], verb: str, flags: Flags, *, both: bool
) -> None:
    if both:
        refuse("--retry and --skip contradict each other; give one")
    if not configuration.url:
        refuse(f"--{verb} is about a server's bad records: set COMPACTORY_URL (this reads topics, and ends)")
    if verb == "skip" and not names and not only:
        refuse("--skip lets go of records for good: name directories, or records by --place")
    server = configuration.server(orders=True)
    places = None
    if names or only:
        places = [
            {name: each[name] for name in ("directory", "partition", "offset")}
            for each in _chosen(_listed(configuration, names, only, orders=True)[0], names, only)
        ]
    found = server.resolve(verb, places)
    done = "applied" if verb == "retry" else "let go of"
    told = f"{number(found['done'])} {done}, {number(found['outstanding'])} outstanding"
    answer(found, told, as_json=flags.json)
    left = found["outstanding"] if places is None else len(places) - found["done"]
    if verb == "retry" and left > 0:
        raise typer.Exit(1)


def _print(found: list[dict[str, Any]]) -> None:
    from ..views.moment import moment_text

    print_table(
        ("directory", "partition", "offset", "error", "written"),
        (
            (
                marked("bold", each["directory"]), each["partition"], each["offset"], each["error"],
                moment_text(each["timestamp_ms"] * 1000) if each["timestamp_ms"] >= 0 else None,
            )
            for each in found
        ),
        right=("partition", "offset"),
        none="no bad records",
    )  # fmt: skip

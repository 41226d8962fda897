"""``compactory errors``: lists, retries and skips bad records."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import argument, flag
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


def list_errors(
    names: Annotated[
        list[str] | None, argument("[DIRECTORY[:PARTITION:OFFSET]]…", "Directories, or single records; default: all.")
    ] = None,
    retry: Annotated[bool, flag("--retry", "The server applies the records again.")] = False,
    skip: Annotated[bool, flag("--skip", "The server drops the records.")] = False,
) -> None:
    """List bad records: the store can't apply them, and no newer record of their key has replaced them.

    Asks the server at COMPACTORY_URL, or reads the topics. With COMPACTORY_HTTP_ADMIN_TOKEN the server also shows keys
    and values, retries and skips. Exit code 1 if a retried record is still bad.

    Example: `compactory errors terminal_acquirer:0:42 --retry`
    """
    configuration = begin()
    if retry and skip:
        refuse("--retry and --skip contradict each other; give one")
    if retry or skip:
        _resolve_records(configuration, names or [], "retry" if retry else "skip")
        return
    records, listed, outstanding = _read_records(configuration, names or [])
    print_tables(Table("errors", records, _RECORDS, "no bad records"), outstanding=outstanding)
    if outstanding > listed and not wants_json():
        write(f"the newest {number(listed)} of {number(outstanding)} were looked at")


def _read_records(
    configuration: Configuration, names: Sequence[str], *, orders: bool = False
) -> tuple[list[dict[str, Any]], int, int]:
    """Return the bad records of these names, and how many were listed and are outstanding."""
    directories = list(dict.fromkeys(name.partition(":")[0] for name in names))
    if configuration.url:
        server = configuration.server(admin=True, orders=orders)
        server.directories(directories)
        records, outstanding = server.errors()
    else:
        from ..context.reading import read, resolve

        with read(configuration, resolve(configuration, configuration.chosen(directories, "errors"))) as store:
            records = [_record_json(error) for error in store.quarantine()]
        outstanding = len(records)
    selected = [
        record
        for record in records
        if not names
        or record["directory"] in names
        or f"{record['directory']}:{record['partition']}:{record['offset']}" in names
    ]
    return selected, len(records), outstanding


def _record_json(error: QuarantinedRecord) -> dict[str, Any]:
    raw = {"key_base64": _base64(error.key), "value_base64": _base64(error.value)}
    return fields(error, "directory", "topic", "partition", "offset", "timestamp_ms", "error", "stacktrace") | raw


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _resolve_records(configuration: Configuration, names: Sequence[str], verb: str) -> None:
    if not configuration.url:
        refuse(f"--{verb} is about a server's bad records: set COMPACTORY_URL")
    if verb == "skip" and not names:
        refuse("--skip drops records for good: name directories, or records as DIRECTORY:PARTITION:OFFSET")
    places = None
    if names:
        records, _, _ = _read_records(configuration, names, orders=True)
        places = [{name: record[name] for name in ("directory", "partition", "offset")} for record in records]
    result = configuration.server(orders=True).resolve(verb, places)
    participle = "applied" if verb == "retry" else "dropped"
    answer(result, f"{number(result['done'])} {participle}, {number(result['outstanding'])} outstanding")
    unresolved = result["outstanding"] if places is None else len(places) - result["done"]
    if verb == "retry" and unresolved > 0:
        raise typer.Exit(1)

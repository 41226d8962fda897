"""Prints offsets, and the effect of an edit, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from time import time as clock
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .moment import moment_text
from .terminal import counted, fields, number, print_facts, print_json, say, span, wants_json

if TYPE_CHECKING:
    from compactory_connectors.source.offsets.offset import SourceOffset
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import Preview

__all__ = ["show_changes", "show_offsets"]

_NO_OFFSET = "none: the next run sends every row"


def show_offsets(
    connector: str,
    offsets: Iterable[tuple[str, StoredOffset | None]],
    hint: str = "",
    rows: Mapping[str, int] | None = None,
) -> None:
    """Print the offsets of a connector; ``rows`` has the number of rows that a poll would send now."""
    counts = rows or {}
    tables = [_table_json(name, stored) for name, stored in offsets]
    for table in tables:
        if table["table"] in counts:
            table["rows"] = counts[table["table"]]
    if wants_json():
        print_json({"connector": connector, "tables": tables})
        return
    has_offsets = any(table["written_at"] for table in tables)
    say(f"[bold]{escape(connector)}[/]" + ("" if has_offsets else f": no offsets; its next run sends every row{hint}"))
    for table in tables:
        say(f"\n  {escape(str(table['table']))}")
        print_facts(_offset_facts(table), "    ")


def show_changes(connector: str, previews: Sequence[Preview], *, written: bool | None) -> None:
    """Print the effect of an edit. ``written`` is None before the user confirms it."""
    if wants_json():
        print_json(
            {"connector": connector, "written": bool(written), "tables": [_change_json(item) for item in previews]}
        )
        return
    if written:
        say("[green]✓[/] written")
        return
    say(f"[bold]{escape(connector)}[/]" + ("" if previews else ": nothing to do, no offset is stored"))
    for item in previews:
        say(f"\n  {escape(item.change.table)}" + (f" → topic {escape(item.change.topic)}" if item.change.topic else ""))
        print_facts(_effect(item), "    ")
    if written is not None:
        say("\nnothing was written")


def _table_json(name: str, stored: StoredOffset | None) -> dict[str, Any]:
    document: dict[str, Any] = {"table": name, "written_at": None, "problem": None} | _offset_json(None)
    if stored is not None:
        document |= fields(stored, "written_at", "problem") | _offset_json(stored.offset)
        document |= _edit_json(stored.reset) if stored.reset is not None else {}
    return document


def _offset_json(offset: SourceOffset | None) -> dict[str, Any]:
    """Return the fields of an offset that people and programs see; each is None without an offset."""
    names = ("timestamp", "timestamp_nanos", "incrementing", "topic", "sweep")
    server_names = ("system_identifier", "timeline", "postmaster_start", "table_oid")
    identity, rewind, snapshot = (getattr(offset, name, None) for name in ("identity", "rewind", "seen_snapshot"))
    return {
        **{name: getattr(offset, name, None) for name in names},
        **{name: getattr(identity, name, None) for name in server_names},
        **_edit_json(getattr(offset, "edited", None)),
        "time": _time(offset.cursor.micros) if offset is not None else None,
        "snapshot": str(snapshot.snapshot) if snapshot is not None else None,
        "phase": offset.phase.value if offset is not None else None,
        "rewind": asdict(rewind) | {"time": _time(rewind.micros)} if rewind is not None else None,
    }


def _edit_json(edit: Any) -> dict[str, Any]:
    names = {"edited_by": "by", "edited_at": "at", "edited": "command"}
    return {name: getattr(edit, field, None) for name, field in names.items()}


def _offset_facts(table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if table["problem"]:
        yield "problem", f"can't be read: {table['problem']}; compactory source offsets reset forgets it"
    elif table["phase"] is None:
        yield "offset", _NO_OFFSET
    else:
        yield "timestamp", f"{table['time']} ({table['timestamp']} ms)" if table["time"] else "–"
        yield "id", str(table["incrementing"]) if table["incrementing"] is not None else "–"
        yield "snapshot", table["snapshot"] or "none yet"
        if table["system_identifier"]:
            yield "server", f"system {table['system_identifier']}, timeline {table['timeline']}"
        yield "topic", table["topic"][0] if table["topic"] else "–"
    if table["rewind"]:
        yield "set", f"the next run sends what is beyond {_together(table['rewind'])}"
    if table["phase"] == "comparing":
        yield "import", "the next run compares every row with the topic"
    if written_at := table["written_at"]:
        yield "written", f"{moment_text(int(written_at) * 1_000_000)}, {span(max(0.0, clock() - written_at))} ago"
    if table["edited_at"]:
        yield "edited", f"{table['edited']}, by {table['edited_by']} at {table['edited_at']}"
    if "rows" in table:
        yield "rows", f"a poll would send {number(table['rows'])} now"


def _change_json(item: Preview) -> dict[str, Any]:
    change = item.change
    document = fields(change, "table", "topic", "note") | fields(item, "due", "rows")
    previous = change.previous.offset if change.previous is not None else None
    for name, offset in (("before", previous), ("after", change.offset)):
        document[name] = _offset_json(offset) if offset is not None else None
    return document


def _effect(item: Preview) -> Iterable[tuple[str, str]]:
    change = item.change
    yield "before", _offset_text(change.previous.offset if change.previous is not None else None)
    yield "after", _offset_text(change.offset)
    if item.rows is not None:
        yield "next run", f"sends {counted(item.rows, 'row')}; without this edit {number(item.due or 0)}"
    if change.note:
        yield "note", change.note


def _offset_text(offset: SourceOffset | None) -> str:
    if offset is None:
        return _NO_OFFSET
    document = _offset_json(offset)
    snapshot = f"snapshot {document['snapshot']}" if document["snapshot"] else ""
    return ", ".join(filter(None, [_together(document), snapshot])) or "no place yet"


def _together(document: Mapping[str, Any]) -> str:
    incrementing = document["incrementing"]
    return ", ".join(filter(None, [document["time"], f"id {incrementing}" if incrementing is not None else None]))


def _time(micros: int | None) -> str | None:
    return moment_text(micros) if micros is not None else None

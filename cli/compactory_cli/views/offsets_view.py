"""Prints offsets, and the effect of an edit, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .moment import ago, moment_text
from .tables import Column, Table, bold, print_tables
from .terminal import counted, fields, number, say, wants_json, write

if TYPE_CHECKING:
    from compactory_connectors.source.offsets.offset import SourceOffset
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import Preview

__all__ = ["offsets_table", "show_changes", "show_offsets"]


def offsets_table(offsets: Iterable[tuple[str, StoredOffset | None]], rows: Mapping[str, int] | None = None) -> Table:
    """Return stored offsets as a table; ``rows`` has the number of rows that a poll would send now."""
    counts = rows or {}
    items = [_document(name, stored) | ({"rows": counts[name]} if name in counts else {}) for name, stored in offsets]
    columns = [
        Column("table", bold),
        Column("offset", None, _text),
        Column("written", ago, "written_at"),
        Column("edited", None, lambda item: f"{item['edited']}, by {item['edited_by']}" if item["edited"] else None),
        *([Column("a poll sends", number, "rows", right=True)] if counts else []),
    ]
    return Table("tables", items, columns, "no offsets; the next run sends every row")


def show_offsets(
    connector: str,
    offsets: Iterable[tuple[str, StoredOffset | None]],
    hint: str = "",
    rows: Mapping[str, int] | None = None,
) -> None:
    """Print the offsets of a connector, and for people a hint."""
    table = offsets_table(offsets, rows)
    print_tables(table, connector=connector)
    if not wants_json() and not any(item["written_at"] for item in table.items):
        write(f"{connector} has no offsets; its next run sends every row{hint}")


def show_changes(connector: str, previews: Sequence[Preview], *, written: bool | None) -> None:
    """Print the effect of an edit. ``written`` is None before the user confirms it."""
    if written and not wants_json():
        say("[green]✓[/] written")
        return
    table = Table("tables", previews, _CHANGES, "nothing to do: no offset is stored", _change_document)
    print_tables(table, connector=connector, written=bool(written))
    if written is False and not wants_json():
        write("nothing was written")


def _document(name: str, stored: StoredOffset | None) -> dict[str, Any]:
    document: dict[str, Any] = {"table": name, "written_at": None, "problem": None} | _offset_document(None)
    if stored is not None:
        document |= fields(stored, "written_at", "problem") | _offset_document(stored.offset)
        document |= _edit_document(stored.reset) if stored.reset is not None else {}
    return document


def _offset_document(offset: SourceOffset | None) -> dict[str, Any]:
    """Return the fields of an offset that people and programs see; each is None without an offset."""
    names = ("timestamp", "timestamp_nanos", "incrementing", "topic", "sweep")
    server_names = ("system_identifier", "timeline", "postmaster_start", "table_oid")
    identity, rewind, snapshot = (getattr(offset, name, None) for name in ("identity", "rewind", "seen_snapshot"))
    return {
        **{name: getattr(offset, name, None) for name in names},
        **{name: getattr(identity, name, None) for name in server_names},
        **_edit_document(getattr(offset, "edited", None)),
        "time": _time(offset.cursor.micros) if offset is not None else None,
        "snapshot": str(snapshot.snapshot) if snapshot is not None else None,
        "phase": offset.phase.value if offset is not None else None,
        "rewind": asdict(rewind) | {"time": _time(rewind.micros)} if rewind is not None else None,
    }


def _edit_document(edit: Any) -> dict[str, Any]:
    names = {"edited_by": "by", "edited_at": "at", "edited": "command"}
    return {name: getattr(edit, field, None) for name, field in names.items()}


def _change_document(item: Preview) -> dict[str, Any]:
    change = item.change
    document = fields(change, "table", "topic", "note") | fields(item, "due", "rows")
    previous = change.previous.offset if change.previous is not None else None
    for name, offset in (("before", previous), ("after", change.offset)):
        document[name] = _offset_document(offset) if offset is not None else None
    return document


def _text(item: Mapping[str, Any] | None) -> str:
    """Return an offset's document on one line."""
    if item is not None and item.get("problem"):
        return f"can't be read: {item['problem']}; compactory source offsets reset forgets it"
    if item is None or item["phase"] is None:
        return "none: the next run sends every row"
    parts = [_cursor_text(item), f"snapshot {item['snapshot']}" if item["snapshot"] else None]
    if item["rewind"]:
        parts.append(f"the next run sends what is beyond {_cursor_text(item['rewind'])}")
    if item["phase"] == "comparing":
        parts.append("the next run compares every row with the topic")
    return ", ".join(filter(None, parts)) or "nothing was sent yet"


def _cursor_text(item: Mapping[str, Any]) -> str:
    """Return time and id of a cursor."""
    incrementing = item["incrementing"]
    return ", ".join(filter(None, [item["time"], f"id {incrementing}" if incrementing is not None else None]))


def _time(micros: int | None) -> str | None:
    return moment_text(micros) if micros is not None else None


def _effect_text(item: Preview) -> str | None:
    return None if item.rows is None else f"{counted(item.rows, 'row')}; without this edit {number(item.due or 0)}"


_CHANGES = (
    Column("table", bold, lambda item: item.change.table),
    Column("before", None, lambda item: _text(_change_document(item)["before"])),
    Column("after", None, lambda item: _text(_change_document(item)["after"])),
    Column("next run sends", None, _effect_text),
    Column("note", None, lambda item: item.change.note or None),
)

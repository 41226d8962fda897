"""Prints offsets, and the effect of an edit, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .moment import ago, moment_text
from .tables import Column, Table, bold, document, print_tables
from .terminal import counted, fields, number, say, wants_json, write

if TYPE_CHECKING:
    from compactory_connectors.source.offsets.offset import SourceOffset
    from compactory_connectors.source.offsets.offset_parts import Cursor, Edit
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import Preview

__all__ = ["offsets_table", "show_changes", "show_offsets"]

_NamedOffset = tuple[str, "StoredOffset | None"]  # with the name of its table


def offsets_table(offsets: Iterable[_NamedOffset], rows: Mapping[str, int] | None = None) -> Table:
    """Return stored offsets as a table; ``rows`` has the number of rows that a poll would send now."""
    columns = [
        Column("table", bold, lambda item: item[0]),
        Column("offset", None, lambda item: _stored_text(item[1])),
        Column("written", ago, lambda item: item[1].written_at if item[1] is not None else None),
        Column("edited", lambda edit: f"{edit.command}, by {edit.by}", lambda item: _newest_edit(item[1])),
    ]
    if rows is not None:
        columns.append(Column("a poll sends", number, lambda item: rows[item[0]], right=True))
    none = "no offsets; the next run sends every row"
    return Table("tables", list(offsets), columns, none, partial(_stored_json, rows or {}))


def show_offsets(
    connector: str, offsets: Sequence[_NamedOffset], hint: str = "", rows: Mapping[str, int] | None = None
) -> None:
    """Print the offsets of a connector, and for people a hint."""
    print_tables(offsets_table(offsets, rows), connector=connector)
    if not wants_json() and not any(stored for _, stored in offsets):
        write(f"{connector} has no offsets; its next run sends every row{hint}")


def show_changes(connector: str, previews: Sequence[Preview], *, written: bool | None) -> None:
    """Print the effect of an edit. ``written`` is None before the user confirms it."""
    if written and not wants_json():
        say("[green]✓[/] written")
        return
    table = Table("tables", previews, _CHANGES, "nothing to do: no offset is stored", _change_json)
    print_tables(table, connector=connector, written=bool(written))
    if written is False and not wants_json():
        write("nothing was written")


def _stored_json(rows: Mapping[str, int], item: _NamedOffset) -> dict[str, Any]:
    table, stored = item
    return {
        "table": table,
        "written_at": stored.written_at if stored is not None else None,
        "problem": stored.problem if stored is not None else None,
        "offset": _offset_json(stored.offset) if stored is not None else None,
        "edit": document(_newest_edit(stored)),
    } | ({"rows": rows[table]} if table in rows else {})


def _change_json(item: Preview) -> dict[str, Any]:
    shown = fields(item.change, "table", "topic", "note") | fields(item, "due", "rows")
    return shown | {"before": _offset_json(_previous(item)), "after": _offset_json(item.change.offset)}


def _offset_json(offset: SourceOffset | None) -> dict[str, Any] | None:
    if offset is None:
        return None
    return fields(offset, "timestamp", "timestamp_nanos", "incrementing", "topic") | {
        "time": _time(offset.cursor),
        "snapshot": str(offset.seen_snapshot.snapshot) if offset.seen_snapshot is not None else None,
        "phase": offset.phase.value,
        "rewind": document(offset.rewind),
        **fields(offset.identity, "system_identifier", "timeline"),
    }


def _newest_edit(stored: StoredOffset | None) -> Edit | None:
    """Return the newest edit by hand."""
    if stored is None:
        return None
    return stored.reset or (stored.offset.edited if stored.offset is not None else None)


def _previous(item: Preview) -> SourceOffset | None:
    return item.change.previous.offset if item.change.previous is not None else None


def _stored_text(stored: StoredOffset | None) -> str:
    if stored is not None and stored.problem:
        return f"can't be read: {stored.problem}; compactory source offsets reset forgets it"
    return _offset_text(stored.offset if stored is not None else None)


def _offset_text(offset: SourceOffset | None) -> str:
    if offset is None:
        return "none: the next run sends every row"
    parts = [_cursor_text(offset.cursor)]
    if offset.seen_snapshot is not None:
        parts.append(f"snapshot {offset.seen_snapshot.snapshot}")
    if offset.rewind is not None:
        parts.append(f"the next run sends what is beyond {_cursor_text(offset.rewind)}")
    if offset.phase.value == "comparing":
        parts.append("the next run compares every row with the topic")
    return ", ".join(filter(None, parts)) or "nothing was sent yet"


def _cursor_text(cursor: Cursor) -> str:
    number_text = f"id {cursor.incrementing}" if cursor.incrementing is not None else None
    return ", ".join(filter(None, [_time(cursor), number_text]))


def _time(cursor: Cursor) -> str | None:
    return moment_text(cursor.micros) if cursor.micros is not None else None


def _effect_text(item: Preview) -> str | None:
    return None if item.rows is None else f"{counted(item.rows, 'row')}; without this edit {number(item.due or 0)}"


_CHANGES = (
    Column("table", bold, lambda item: item.change.table),
    Column("before", None, lambda item: _offset_text(_previous(item))),
    Column("after", None, lambda item: _offset_text(item.change.offset)),
    Column("next run sends", None, _effect_text),
    Column("note", None, lambda item: item.change.note or None),
)

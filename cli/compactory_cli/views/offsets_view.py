"""Prints offsets, and the effect of an edit, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from time import time as clock
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .moment import moment_text
from .terminal import counted, decoded, fields, legible, number, print_facts, print_json, say, span

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.offsets.offset import SourceOffset
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import Difference, Preview

__all__ = ["show_changes", "show_offsets"]

_SHOWN = ("timestamp", "timestamp_nanos", "incrementing", "topic", "sweep")
_SHOWN_OF_SERVER = ("system_identifier", "timeline", "postmaster_start", "table_oid")


def show_offsets(
    config: ConnectorConfig,
    offsets: Iterable[tuple[str, StoredOffset | None]],
    hint: str,
    *,
    rows: Mapping[str, int] | None = None,
    as_json: bool,
) -> None:
    """Print the offsets of a connector; ``rows`` has the number of rows that a poll would send now."""
    tables = [_table_json(name, stored, (rows or {}).get(name)) for name, stored in offsets]
    if as_json:
        print_json({"connector": config.name, "tables": tables})
        return
    stored = any(item["written_at"] for item in tables)
    say(f"[bold]{escape(config.name)}[/]" + ("" if stored else f": no offsets; its next run sends every row{hint}"))
    for item in tables:
        say(f"\n  {escape(item['table'])}")
        print_facts(_lines(item).items(), "    ")


def show_changes(config: ConnectorConfig, previews: Sequence[Preview], *, written: bool | None, as_json: bool) -> None:
    """Print the effect of an edit. ``written`` is None before the user confirms it."""
    if as_json:
        tables = [_change_json(item) for item in previews]
        print_json({"connector": config.name, "written": bool(written), "tables": tables})
        return
    if written:
        say("[green]✓[/] written")
        return
    say(f"[bold]{escape(config.name)}[/]" + ("" if previews else ": nothing to do, no offset is stored"))
    for item in previews:
        topic = f" → topic {escape(item.change.topic)}" if item.change.topic else ""
        say(f"\n  {escape(item.change.table)}{topic}")
        previous = item.change.previous.offset if item.change.previous is not None else None
        facts = {"before": _offset_text(previous), "after": _offset_text(item.change.offset), **_effect(item)}
        print_facts(facts.items(), "    ")
    if written is not None:
        say("\nnothing was written")


def _table_json(name: str, stored: StoredOffset | None, rows: int | None) -> dict[str, Any]:
    offset = stored.offset if stored is not None else None
    shown: dict[str, Any] = {"table": name, **_shown_fields(offset)}
    if offset is not None and offset.rewind is not None:
        shown["rewind"] = {"time": _moment(offset.rewind.micros), "incrementing": offset.rewind.incrementing}
    shown["written_at"] = stored.written_at if stored is not None else None
    if stored is not None:
        shown["problem"] = stored.problem
        if stored.reset is not None:
            shown |= {"edited_by": stored.reset.by, "edited_at": stored.reset.at, "edited": stored.reset.command}
    if rows is not None:
        shown["rows"] = rows
    return shown


def _lines(item: Mapping[str, Any]) -> dict[str, str]:
    lines: dict[str, str] = {}
    if item.get("problem"):
        lines["problem"] = f"can't be read: {item['problem']}; compactory source offsets reset forgets it"
    elif item["time"] is None and item["incrementing"] is None and item["snapshot"] is None:
        lines["offset"] = "none: the next run sends every row"
    else:
        lines["timestamp"] = f"{item['time']} ({item['timestamp']} ms)" if item["time"] else "–"
        lines["id"] = str(item["incrementing"]) if item["incrementing"] is not None else "–"
        lines["snapshot"] = str(item["snapshot"] or "none yet")
        if item["system_identifier"]:
            lines["server"] = f"system {item['system_identifier']}, timeline {item['timeline']}"
        lines["topic"] = str(item["topic"][0]) if item["topic"] else "–"
    if item.get("rewind"):
        lines["set"] = f"the next run sends what is beyond {_together(**item['rewind'])}"
    if item.get("phase") == "comparing":
        lines["import"] = "the next run compares every row with the topic"
    if item.get("written_at"):
        age = max(0.0, clock() - item["written_at"])
        lines["written"] = f"{moment_text(int(item['written_at']) * 1_000_000)}, {span(age)} ago"
    if item.get("edited_at"):
        lines["edited"] = f"{item['edited']}, by {item['edited_by']} at {item['edited_at']}"
    if "rows" in item:
        lines["rows"] = f"a poll would send {number(item['rows'])} now"
    return lines


def _change_json(item: Preview) -> dict[str, Any]:
    change = item.change
    return {
        "table": change.table,
        "topic": change.topic,
        "before": _offset_json(change.previous.offset if change.previous is not None else None),
        "after": _offset_json(change.offset),
        "due": item.due,
        "rows": item.rows if item.difference is None else item.difference.lacking,
        "difference": _difference_json(item.difference) if item.difference is not None else None,
        "note": change.note,
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        **fields(difference, "same", "lacking", "removed", "held"),
        "examples": [{"key": decoded(key), "value": decoded(value)} for key, value in difference.examples],
    }


def _offset_json(offset: SourceOffset | None) -> dict[str, Any] | None:
    if offset is None:
        return None
    return _shown_fields(offset) | {"rewind": asdict(offset.rewind) if offset.rewind is not None else None}


def _shown_fields(offset: SourceOffset | None) -> dict[str, Any]:
    """Return the fields of an offset that people and programs see, None without an offset."""
    edit = offset.edited if offset is not None else None
    seen_snapshot = offset.seen_snapshot if offset is not None else None
    return {
        **{name: getattr(offset, name, None) for name in _SHOWN},
        **{name: getattr(offset.identity, name) if offset is not None else None for name in _SHOWN_OF_SERVER},
        "snapshot": str(seen_snapshot.snapshot) if seen_snapshot is not None else None,
        "phase": offset.phase.value if offset is not None else None,
        "edited_by": edit.by if edit is not None else None,
        "edited_at": edit.at if edit is not None else None,
        "edited": edit.command if edit is not None else None,
        "time": _time(offset),
    }


def _effect(item: Preview) -> dict[str, str]:
    lines: dict[str, str] = {}
    if item.rows is not None:
        lines["next run"] = f"sends {counted(item.rows, 'row')}; without this edit {number(item.due or 0)}"
    if (difference := item.difference) is not None:
        lines["next run"] = (
            f"sends {counted(difference.lacking, 'record')}; the topic has {counted(difference.same, 'row')}"
        )
        if difference.removed:
            waiting = ", which is so many that it waits for you" if difference.held else ""
            lines["removes"] = f"{counted(difference.removed, 'key')} that the table lacks{waiting}"
        for position, (key, value) in enumerate(difference.examples, 1):
            lines[f"lacking {position}"] = f"{legible(key, 'None')} {legible(value, '(tombstone)')}"
    if item.change.note:
        lines["note"] = item.change.note
    return lines


def _offset_text(offset: SourceOffset | None) -> str:
    if offset is None:
        return "none: the next run sends every row"
    snapshot = f"snapshot {offset.seen_snapshot.snapshot}" if offset.seen_snapshot is not None else ""
    place = _together(_time(offset), offset.incrementing)
    return ", ".join(filter(None, [place, snapshot])) or "no place yet"


def _together(time: str | None, incrementing: int | None) -> str:
    return ", ".join(filter(None, [time, f"id {incrementing}" if incrementing is not None else None]))


def _time(offset: SourceOffset | None) -> str | None:
    return _moment(offset.cursor.micros) if offset is not None else None


def _moment(micros: int | None) -> str | None:
    return moment_text(micros) if micros is not None else None

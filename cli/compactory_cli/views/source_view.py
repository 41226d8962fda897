"""Prints the status of sources, as a process reports it or as Kafka and Postgres have it; offsets, and their edits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .moment import ago, moment_text
from .tables import Column, Table, bold, document, print_tables
from .terminal import (
    counted,
    escape,
    fields,
    marked,
    number,
    print_facts,
    print_json,
    say,
    span,
    wants_json,
    warn,
    write,
)
from .terminal import seconds as duration

if TYPE_CHECKING:
    from compactory_connectors.source.offsets.offset import SourceOffset
    from compactory_connectors.source.offsets.offset_parts import Cursor, Edit
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.offset_admin import Preview
    from compactory_connectors.source.operations.overview import Overview

__all__ = ["is_healthy", "show_changes", "show_offsets", "show_overviews", "show_status"]

_COLOURS = {"RUNNING": "green", "STANDBY": "green", "PAUSED": "yellow", "WAITING": "yellow", "STARTING": "yellow"}
_BAD = {"FAILED", "HELD", "STOPPED"}
_TABLES = (
    Column("table"),
    Column("state", lambda state: marked(_colour(state), state)),
    Column("topic"),
    Column("records", number, "rows_total", right=True),
    Column("errors", number, "errors_total", right=True),
    Column("behind", span, "lag_seconds"),
    Column("last record", lambda at: ago(at) if at else None, "last_publish"),
)


def is_healthy(connector: dict[str, Any]) -> bool:
    """Return True if Postgres and Kafka are reachable and no table failed or waits for an operator."""
    is_unreachable = connector["state"] == "WAITING"  # a table that waits for a lock goes on by itself
    return not is_unreachable and _BAD.isdisjoint({connector["state"], *(row["state"] for row in connector["tables"])})


def show_status(connectors: Sequence[dict[str, Any]], place: str) -> None:
    """Print the status of connectors as a process reports it."""
    if wants_json():
        print_json({"asked": place, "connectors": list(connectors)})
        return
    if not connectors:
        write(f"{place} runs no connectors")
    for connector in connectors:
        state = connector["state"]
        say(f"[bold]{escape(connector['connector'])}[/] [{_colour(state)}]{state}[/] {_for(connector.get('since'))}")
        print_facts(_connector_facts(connector))
        print_tables(Table("tables", connector["tables"], _TABLES))
        for text in filter(None, [connector["detail"], *_details(connector)]):
            say(f"  [yellow]![/] {escape(text)}")


def show_overviews(overviews: Sequence[Overview], unanswered: str | None) -> None:
    """Print what Kafka and Postgres know of connectors. ``unanswered`` is the error of asking their process."""
    if unanswered and not wants_json():
        warn(unanswered)
    if not wants_json():
        write("no process was asked (--url): this is what Kafka and Postgres know")
    connectors = Table("connectors", overviews, _OVERVIEWS, document=_overview_document)
    print_tables(connectors, asked=None, unanswered=unanswered)
    if not wants_json():
        print_tables(_offsets_table((stored.table, stored) for overview in overviews for stored in overview.offsets))


def _connector_facts(connector: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if connector["target"] != "RUNNING":
        stored = "" if connector["target_stored"] else ", not stored yet: a restart of the process would end it"
        yield "target", f"{connector['target']} {_for(connector['target_since'])}{stored}"
    if lease := connector.get("lease"):
        holder = "held by this process" if lease["held"] else f"held by {lease['holder'] or 'an unknown process'}"
        yield "lease", holder + (f"; {lease['lacks']}" if lease.get("lacks") else "")
    if beat := connector.get("heartbeat"):
        yield "heartbeat", f"{ago(beat['committed_at'])}, {duration(beat['seconds'])} from commit to Kafka"
    if transaction := connector.get("open_transaction"):
        yield "waits for", str(transaction["text"])


def _details(connector: dict[str, Any]) -> Iterator[str]:
    """Yield loads and details of tables, except a detail that equals their connector's."""
    for row in connector["tables"]:
        if load := row.get("load"):
            remaining = f", {span(load['eta'])} left" if load["eta"] is not None else ""
            yield f"{row['table']}: loading, {number(load['rows'])} of {number(load['of'])} rows{remaining}"
        if row["detail"] and row["detail"] != connector["detail"]:
            yield f"{row['table']}: {row['detail']}"


def _target_text(overview: Overview) -> str:
    target = overview.target_state
    return f"{target.target.value} {_for(target.since)}" if target.is_paused else target.target.value


def _lease_text(overview: Overview) -> str:
    if overview.postgres_error is not None:
        return f"Postgres was not asked: {overview.postgres_error}"
    late = " (not renewed in time: gone, or cut off)" if overview.renewed is False else ""
    return f"{overview.holder}{late}" if overview.holder else "free"


_OVERVIEWS = (
    Column("connector", bold),
    Column("target", None, _target_text),
    Column("lease", None, _lease_text),
    Column("sessions", None, lambda overview: "; ".join(overview.sessions) or None),
)


def _overview_document(overview: Overview) -> dict[str, Any]:
    is_known = overview.postgres_error is None
    return {
        "connector": overview.connector,
        "state": None,
        "target": overview.target_state.target.value,
        "target_since": overview.target_state.since,
        "lease": fields(overview, "holder", "renewed") if is_known else None,
        "sessions": list(overview.sessions),
        "postgres": overview.postgres_error,
        "tables": [
            {"table": stored.table, "written_at": stored.written_at if stored.value is not None else None}
            for stored in overview.offsets
        ],
    }


def _colour(state: str) -> str:
    return _COLOURS.get(state, "red")


def _for(at: float | None) -> str:
    return "" if at is None else f"for {span(max(0.0, time.time() - at))}"


_NamedOffset = tuple[str, "StoredOffset | None"]  # with the name of its table


def _offsets_table(offsets: Iterable[_NamedOffset], rows: Mapping[str, int] | None = None) -> Table:
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
    print_tables(_offsets_table(offsets, rows), connector=connector)
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

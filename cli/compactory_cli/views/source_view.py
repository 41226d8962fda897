"""Prints the status of sources: as a process reports it, or as Kafka and Postgres have it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .moment import moment_text
from .tables import Column, Table, print_tables
from .terminal import fields, marked, number, print_facts, print_json, say, span, wants_json, warn, write
from .terminal import seconds as duration

if TYPE_CHECKING:
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.overview import Overview

__all__ = ["is_healthy", "show_overviews", "show_status"]

_COLOURS = {"RUNNING": "green", "STANDBY": "green", "PAUSED": "yellow", "WAITING": "yellow", "STARTING": "yellow"}
_BAD = {"FAILED", "HELD", "STOPPED"}
_TABLES = (
    Column("table"),
    Column("state", lambda state: marked(_colour(state), state)),
    Column("topic"),
    Column("records", number, "rows_total", right=True),
    Column("errors", number, "errors_total", right=True),
    Column("behind", span, "lag_seconds"),
    Column("last record", lambda at: _ago(at) if at else None, "last_publish"),
)


def _written_text(stored: StoredOffset) -> str:
    return moment_text(int(stored.written_at * 1_000_000)) if stored.value is not None else "forgotten"


def _edit_text(stored: StoredOffset) -> str:
    edit = stored.reset or (stored.offset.edited if stored.offset is not None else None)
    return f"{edit.by}: {edit.command}" if edit is not None else ""


_OFFSETS = (Column("table"), Column("offset written", None, _written_text), Column("by hand", None, _edit_text))


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
    if wants_json():
        print_json({"asked": None, "unanswered": unanswered, "connectors": [*map(_overview_json, overviews)]})
        return
    if unanswered:
        warn(unanswered)
    write("no process was asked (--url): this is what Kafka and Postgres know")
    for overview in overviews:
        say(f"[bold]{escape(overview.connector)}[/]")
        print_facts(_overview_facts(overview))
        print_tables(Table("tables", overview.offsets, _OFFSETS, "  no offsets: nothing was ever published"))


def _connector_facts(connector: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if connector["target"] != "RUNNING":
        stored = "" if connector["target_stored"] else ", not stored yet: a restart of the process would end it"
        yield "target", f"{connector['target']} {_for(connector['target_since'])}{stored}"
    if lease := connector.get("lease"):
        holder = "held by this process" if lease["held"] else f"held by {lease['holder'] or 'an unknown process'}"
        yield "lease", holder + (f"; {lease['lacks']}" if lease.get("lacks") else "")
    if beat := connector.get("heartbeat"):
        yield "heartbeat", f"{_ago(beat['committed_at'])}, {duration(beat['seconds'])} from commit to Kafka"
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


def _overview_facts(overview: Overview) -> Iterator[tuple[str, str]]:
    target = overview.target_state
    yield "target", f"{target.target.value} {_for(target.since)}" if target.is_paused else target.target.value
    if overview.postgres_error is not None:
        yield "Postgres", f"was not asked: {overview.postgres_error}"
        return
    late = " (not renewed in time: gone, or cut off)" if overview.renewed is False else ""
    yield "lease", f"{overview.holder}{late}" if overview.holder else "free"
    yield "sessions", "; ".join(overview.sessions) or "none: nothing is published now"


def _overview_json(overview: Overview) -> dict[str, Any]:
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


def _ago(at: float) -> str:
    return f"{span(max(0.0, time.time() - at))} ago"

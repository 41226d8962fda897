"""Prints the status of sources: as a process reports it, or as Kafka and Postgres have it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .moment import ago
from .offsets_view import offsets_table
from .tables import Column, Table, bold, print_tables
from .terminal import escape, fields, marked, number, print_facts, print_json, say, span, wants_json, warn, write
from .terminal import seconds as duration

if TYPE_CHECKING:
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
        print_tables(offsets_table((stored.table, stored) for overview in overviews for stored in overview.offsets))


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

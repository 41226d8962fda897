"""Prints the status of sources: as a process reports it, or as Kafka and Postgres have it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .moment import moment_text
from .tables import Column, Table, print_tables
from .terminal import marked, number, print_facts, print_json, say, span, wants_json, warn, write
from .terminal import seconds as duration

if TYPE_CHECKING:
    from compactory_connectors.source.offsets.stored_offsets import StoredOffset
    from compactory_connectors.source.operations.overview import Overview

__all__ = ["is_healthy", "show_overviews", "show_status"]

_COLOURS = {"RUNNING": "green", "STANDBY": "green", "PAUSED": "yellow", "WAITING": "yellow", "STARTING": "yellow"}
_BAD = {"FAILED", "HELD", "STOPPED"}


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
        _head(
            connector["connector"],
            f"[{_colour(connector['state'])}]{connector['state']}[/]",
            _for(connector.get("since")),
        )
        print_facts(_of_connector(connector))
        if connector["tables"]:
            print_tables(Table("tables", connector["tables"], _TABLES))
        for text in [connector["detail"], *_details(connector["tables"], connector["detail"])]:
            if text:
                say(f"  [yellow]![/] {escape(text)}")


def show_overviews(overviews: Sequence[Overview], unanswered: str | None) -> None:
    """Print what Kafka and Postgres know of connectors. ``unanswered`` is the error of asking their process."""
    if wants_json():
        print_json(
            {
                "asked": None,
                "unanswered": unanswered,
                "connectors": [_overview_json(overview) for overview in overviews],
            }
        )
        return
    if unanswered:
        warn(unanswered)
    write("no process was asked (--url): this is what Kafka and Postgres know")
    for overview in overviews:
        _head(overview.connector, "", "")
        print_facts(_of_overview(overview))
        offsets = Table("tables", overview.offsets, _OFFSETS, "  no offsets: nothing was ever published")
        print_tables(offsets)


def _head(name: str, state: str, since: str) -> None:
    say(" ".join(part for part in (f"[bold]{escape(name)}[/]", state, since) if part))


def _of_connector(connector: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if connector["target"] != "RUNNING":
        stored = "" if connector["target_stored"] else ", not stored yet: a restart of the process would end it"
        yield "target", f"{connector['target']} {_for(connector['target_since'])}{stored}"
    if lease := connector.get("lease"):
        holder = "held by this process" if lease["held"] else f"held by {lease['holder'] or 'an unknown process'}"
        yield "lease", holder + (f"; {lease['lacks']}" if lease.get("lacks") else "")
    if beat := connector.get("heartbeat"):
        ago = span(max(0.0, time.time() - beat["committed_at"]))
        yield "heartbeat", f"{ago} ago, {duration(beat['seconds'])} from commit to Kafka"
    if transaction := connector.get("open_transaction"):
        yield "waits for", str(transaction["text"])


def _of_overview(overview: Overview) -> Iterable[tuple[str, str]]:
    target = overview.target_state
    yield "target", f"{target.target.value} {_for(target.since)}" if target.is_paused else target.target.value
    if overview.postgres_error is not None:
        yield "Postgres", f"was not asked: {overview.postgres_error}"
        return
    late = " (not renewed in time: gone, or cut off)" if overview.renewed is False else ""
    yield "lease", f"{overview.holder}{late}" if overview.holder else "free"
    yield "sessions", "; ".join(overview.sessions) or "none: nothing is published now"


_TABLES = (
    Column("table"),
    Column("state", lambda state: marked(_COLOURS.get(state, "red"), state)),
    Column("topic"),
    Column("records", number, "rows_total", right=True),
    Column("errors", number, "errors_total", right=True),
    Column("behind", span, "lag_seconds"),
    Column("last record", lambda at: f"{span(time.time() - at)} ago" if at else None, "last_publish"),
)
_OFFSETS = (
    Column("table"),
    Column("offset written", None, lambda stored: _written(stored)[0]),
    Column("by hand", None, lambda stored: _written(stored)[1]),
)


def _details(rows: Sequence[dict[str, Any]], connector_detail: str | None) -> Iterable[str]:
    """Yield loads and details of tables, except a detail that equals their connector's."""
    for row in rows:
        if load := row.get("load"):
            remaining = f", {span(load['eta'])} left" if load["eta"] is not None else ""
            yield f"{row['table']}: loading, {number(load['rows'])} of {number(load['of'])} rows{remaining}"
        if row["detail"] and row["detail"] != connector_detail:
            yield f"{row['table']}: {row['detail']}"


def _written(stored: StoredOffset) -> tuple[str, str]:
    edit = stored.reset or (stored.offset.edited if stored.offset is not None else None)
    when = moment_text(int(stored.written_at * 1_000_000)) if stored.value is not None else "forgotten"
    return when, f"{edit.by}: {edit.command}" if edit is not None else ""


def _overview_json(overview: Overview) -> dict[str, Any]:
    return {
        "connector": overview.connector,
        "state": None,
        "target": overview.target_state.target.value,
        "target_since": overview.target_state.since,
        "lease": None
        if overview.postgres_error is not None
        else {"holder": overview.holder, "renewed": overview.renewed},
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

"""Which rows a stored offset does not cover: the conditions of the next poll, as SQL. Runs nothing."""

from __future__ import annotations

from dataclasses import replace

from psycopg import sql

from ..cursor.offset import SourceOffset
from ..plan import row_order as place
from ..plan.table_plan import Reading, TablePlan
from ..poll.conditions import Conditions
from ..poll.new_rows import NewRowsReader
from ..postgres.server import PollSnapshot, Server

__all__ = ["due_deletions", "due_rows"]


def due_rows(server: Server, plan: TablePlan, offset: SourceOffset | None, at: PollSnapshot | None) -> sql.Composable:
    """Rows ``t`` that a poll would take now; ``at`` is the snapshot, None of what has no row versions."""
    if offset is None:
        return sql.SQL("true")
    if plan.reading is Reading.NEW_ROWS and at is not None:
        return NewRowsReader(server, plan, offset).unsent(at)
    if plan.reading is Reading.PLACE:
        begun = offset.timestamp is not None or offset.incrementing is not None
        return Conditions(plan).beyond(offset.cursor) if begun else place.beyond(plan, offset.initial, None)
    if at is None or (offset.seen_snapshot is None and plan.reading is Reading.WHOLE):
        return sql.SQL("false")  # a poll takes all of it each time: nothing tells what is new
    versions = replace(plan, reading=Reading.VERSIONS)
    return Conditions(versions).unseen_rows(_adapted(server, plan, offset, at))


def due_deletions(
    server: Server, plan: TablePlan, offset: SourceOffset | None, at: PollSnapshot | None
) -> sql.Composable | None:
    """Logged deletions ``d`` that a poll would take now; None where there is no log to look at."""
    if offset is None or at is None or not plan.adopted:
        return None
    base = _adapted(server, plan, offset, at)
    return None if base.seen_snapshot is None else Conditions(plan).unseen_deletions(base)


def _adapted(server: Server, plan: TablePlan, offset: SourceOffset, at: PollSnapshot) -> SourceOffset:
    """The offset as it holds for the server and table of the snapshot. Without its pages more is due, never less."""
    base = offset.under(plan.shape).on(server.identity(plan.oid), at.snapshot).within(at.partitions)
    places = 1 + len(place.ordering(plan))
    return base if all(len(page.after) == places for page in base.partial_polls) else replace(base, partial_polls=())

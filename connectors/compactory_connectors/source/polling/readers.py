"""The reader that a plan asks for."""

from __future__ import annotations

from ..offsets.offset import SourceOffset
from ..planning.table_plan import Reading, TablePlan
from ..postgres.server import Server
from .cursor_reader import CursorReader
from .reader import Reader
from .table import TableReader

__all__ = ["open_reader"]


def open_reader(
    server: Server,
    plan: TablePlan,
    offset: SourceOffset | None,
    topic: tuple[str, str | None] | None = None,
) -> Reader:
    """A reader that goes on from ``offset``, or begins. ``topic`` is the name and id of where its records go."""
    begun = offset or SourceOffset(
        identity=server.identity(plan.oid), topic=topic, sweep=plan.sweeps, initial_timestamp=plan.initial
    )
    if plan.reading is Reading.CURSOR or not plan.kind.is_table or plan.connector.suffix:
        return CursorReader(server, plan, begun)
    return TableReader(server, plan, begun)

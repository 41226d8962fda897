"""The SQL conditions of a poll: which row versions it has not seen, which rows live. Pure: builds SQL, runs none."""

from __future__ import annotations

from psycopg import sql

from compactory_connectors.postgres.snapshot import Snapshot

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Cursor, PartialPoll, Phase, RowPhase, SeenSnapshot
from ..planning import row_order
from ..planning.table_plan import Reading, TablePlan

__all__ = ["Conditions"]


class Conditions:
    """Conditions on the rows ``t`` of one table and on its deletion log ``d``. Immutable."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan

    def phase(self) -> sql.Composable:
        """0 for a row that lives, 1 for a deactivated one: the first part of the order of emission."""
        if self.plan.connector.soft_delete is None:
            return sql.SQL("0")
        return sql.SQL("(t.{} IS FALSE)::int").format(sql.Identifier(self.plan.connector.soft_delete.column))

    def by_stamp(self, base: SourceOffset) -> bool:
        """Whether the index on ``updated_xid`` finds what the offset does not cover."""
        seen_snapshot = base.seen_snapshot
        if base.phase is not Phase.STEADY or base.new_partitions or seen_snapshot is None:
            return False
        return self.plan.stamped and seen_snapshot.seen is None

    def unseen_rows(self, base: SourceOffset) -> sql.Composable:
        """Row versions that the offset does not cover."""
        conditions: list[sql.Composable] = [self._since(base)]
        if base.new_partitions:
            whole = sql.SQL("({} OR t.tableoid = ANY ({}::int8[]::oid[]))")
            conditions = [whole.format(conditions[0], sql.Literal(list(base.new_partitions)))]
        for page in base.partial_polls:
            if page.in_deletions:
                conditions.append(self._unseen(page.seen_snapshot))
                continue
            place = self._up_to(*page.place)
            conditions.append(sql.SQL("({} OR {} IS NOT TRUE)").format(self._unseen(page.seen_snapshot), place))
        return sql.SQL(" AND ").join(conditions)

    def beyond(self, cursor: Cursor) -> sql.Composable:
        """Rows behind a place in the connector's own order, as the real connector's query has it."""
        plan, since = self.plan, cursor.timestamp
        moment = None if since is None else row_order.timestamp_text(plan, since, cursor.timestamp_nanos)
        return row_order.after_cursor(plan, moment, cursor.incrementing)

    def _since(self, base: SourceOffset) -> sql.Composable:
        """Row versions after the seen snapshot, and those that somebody asked to have sent again."""
        if self.plan.reading is Reading.WHOLE:
            return sql.SQL("true")
        if base.rewind is None:
            return (
                self._unseen(base.seen_snapshot)
                if base.seen_snapshot
                else row_order.after_initial(self.plan, base.initial_timestamp) or sql.SQL("true")
            )
        beyond = self.beyond(base.rewind)
        return sql.SQL("({} OR {})").format(self._unseen(base.seen_snapshot), beyond) if base.seen_snapshot else beyond

    def left_of(self, old: PartialPoll, new: PartialPoll) -> sql.Composable:
        """Rows up to the place of one page that are not up to that of another."""
        parts = self._up_to(*old.place), self._up_to(*new.place)
        return sql.SQL("{} AND {} IS NOT TRUE").format(*parts)

    def _up_to(self, phase: RowPhase, *places: str | None) -> sql.Composable:
        """Rows up to this place in the order of emission, in which NULL comes last."""
        within: sql.Composable = sql.SQL("true")
        for expression, value in reversed(list(zip(row_order.order_columns(self.plan), places, strict=True))):
            before, at = _before_and_at(expression, value)
            within = sql.SQL("({} OR {} AND {})").format(before, at, within)
        parts = {"phase": self.phase(), "at": sql.Literal(phase.value), "within": within}
        return sql.SQL("({phase} < {at} OR {phase} = {at} AND {within})").format(**parts)

    def unseen_deletions(self, base: SourceOffset) -> sql.Composable:
        """Logged deletions that the offset does not cover; the log has top-level transaction ids."""
        assert base.seen_snapshot is not None
        xid = sql.SQL("d.xid")
        conditions = [_not_in_snapshot(xid, base.seen_snapshot.snapshot)]
        for page in base.partial_polls:
            if page.in_deletions:
                unseen = _not_in_snapshot(xid, page.seen_snapshot.snapshot)
                conditions.append(sql.SQL("({} OR d.id > {})").format(unseen, sql.Literal(int(page.place[-1] or 0))))
        return sql.SQL(" AND ").join(conditions)

    def _unseen(self, seen_snapshot: SeenSnapshot) -> sql.Composable:
        """Row versions that were not visible at the seen snapshot."""
        if self.plan.stamped and seen_snapshot.seen is None:
            return _not_in_snapshot(sql.SQL("t.updated_xid"), seen_snapshot.snapshot)
        recent = sql.SQL("age(t.xmin) BETWEEN 0 AND age({}::text::xid)").format(_xid(seen_snapshot.snapshot.xmin))
        if not seen_snapshot.seen:
            return sql.SQL("({})").format(recent)
        seen = sql.Literal([str(xid % (1 << 32)) for xid in sorted(seen_snapshot.seen)])
        return sql.SQL("({} AND t.xmin <> ALL ({}::text[]::xid[]))").format(recent, seen)

    def alive(self) -> sql.Composable:
        """Rows whose key belongs in the topic with a value that is not a deactivation."""
        if self.plan.connector.soft_delete is None:
            return sql.SQL("true")
        return sql.SQL("t.{} IS NOT FALSE").format(sql.Identifier(self.plan.connector.soft_delete.column))

    def present(self) -> sql.Composable:
        """Rows whose key belongs in the topic, deactivated ones included where they are sent as values."""
        return self.alive() if self.plan.sends_tombstones else sql.SQL("true")


def _before_and_at(expression: sql.Composable, value: str | None) -> tuple[sql.Composable, sql.Composable]:
    """Conditions of rows that sort before a value, and of rows that equal it; NULL sorts last."""
    if value is None:
        return sql.SQL("{} IS NOT NULL").format(expression), sql.SQL("{} IS NULL").format(expression)
    parts = {"name": expression, "value": sql.Literal(value)}
    return sql.SQL("{name} < {value}").format(**parts), sql.SQL("{name} = {value}").format(**parts)


def _not_in_snapshot(column: sql.Composable, snapshot: Snapshot) -> sql.Composable:
    """Top-level transaction ids that had not ended at the snapshot and have been given out.

    A dump brings stamps of the server it was made on: those that this one has yet to give would look new at every poll.
    """
    given = sql.SQL("{} < pg_snapshot_xmax(pg_current_snapshot())").format(column)
    since = sql.SQL("{} >= {}::text::xid8").format(column, sql.Literal(str(snapshot.xmax)))
    condition = sql.SQL("{} AND {}").format(since, given)
    if snapshot.xip:
        running = sql.Literal([str(xid) for xid in snapshot.xip])
        condition = sql.SQL("{} OR {} = ANY ({}::text[]::xid8[])").format(condition, column, running)
    return sql.SQL("({})").format(condition)


def _xid(wide: int) -> sql.Literal:
    return sql.Literal(str(wide % (1 << 32)))

"""The SQL conditions of a poll: unseen row versions, living rows. Builds SQL, runs none."""

from __future__ import annotations

from psycopg import sql

from compactory_connectors.postgres.snapshot import Snapshot

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import PartialPoll, Phase, SeenSnapshot
from ..planning import row_order
from ..planning.table_plan import Reading, TablePlan

__all__ = ["Conditions"]


class Conditions:
    """Conditions on the rows ``t`` of one table and on its deletion log ``d``. Immutable."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan

    def phase(self) -> sql.Composable:
        """Return the row phase of ``t``, the first part of the order of emission."""
        if self.plan.connector.soft_delete is None:
            return sql.SQL("0")
        return sql.SQL("(t.{} IS FALSE)::int").format(sql.Identifier(self.plan.connector.soft_delete.column))

    def uses_stamp_index(self, base: SourceOffset) -> bool:
        """Return True if the index on ``updated_xid`` finds all rows that the offset does not cover."""
        seen_snapshot = base.seen_snapshot
        if base.phase is not Phase.STEADY or base.new_partitions or seen_snapshot is None:
            return False
        return self.plan.stamped and seen_snapshot.seen is None

    def unseen_rows(self, base: SourceOffset) -> sql.Composable:
        """Return the condition of row versions that the offset does not cover."""
        conditions: list[sql.Composable] = [self._since(base)]
        if base.new_partitions:
            whole = sql.SQL("({} OR t.tableoid = ANY ({}::int8[]::oid[]))")
            conditions = [whole.format(conditions[0], sql.Literal(list(base.new_partitions)))]
        for page in base.partial_polls:
            if page.in_deletions:
                conditions.append(self._unseen(page.seen_snapshot))
                continue
            place = self._up_to(page)
            conditions.append(sql.SQL("({} OR {} IS NOT TRUE)").format(self._unseen(page.seen_snapshot), place))
        return sql.SQL(" AND ").join(conditions)

    def _since(self, base: SourceOffset) -> sql.Composable:
        """Return the condition of row versions after the seen snapshot, and of rows that are sent again."""
        if self.plan.reading is Reading.WHOLE:
            return sql.SQL("true")
        unseen = self._unseen(base.seen_snapshot) if base.seen_snapshot else None
        if base.rewind is None:
            return unseen or row_order.after_initial(self.plan, base.initial_timestamp) or sql.SQL("true")
        resent = row_order.after_cursor(self.plan, base.rewind)
        return sql.SQL("({} OR {})").format(unseen, resent) if unseen else resent

    def covered_only_by(self, former: PartialPoll, newer: PartialPoll) -> sql.Composable:
        """Return the condition of rows that a former partial poll covers and a newer one does not."""
        parts = self._up_to(former), self._up_to(newer)
        return sql.SQL("{} AND {} IS NOT TRUE").format(*parts)

    def _up_to(self, page: PartialPoll) -> sql.Composable:
        """Return the condition of rows up to a place in the order of emission, in which NULL comes last."""
        within: sql.Composable = sql.SQL("true")
        for expression, value in reversed(list(zip(row_order.order_columns(self.plan), page.place, strict=True))):
            is_smaller, is_equal = _smaller_and_equal(expression, value)
            within = sql.SQL("({} OR {} AND {})").format(is_smaller, is_equal, within)
        parts = {"phase": self.phase(), "at": sql.Literal(page.phase.value), "within": within}
        return sql.SQL("({phase} < {at} OR {phase} = {at} AND {within})").format(**parts)

    def unseen_deletions(self, base: SourceOffset) -> sql.Composable:
        """Return the condition of logged deletions that the offset does not cover; the log has top-level ids."""
        assert base.seen_snapshot is not None
        xid = sql.SQL("d.xid")
        conditions = [_not_in_snapshot(xid, base.seen_snapshot.snapshot)]
        for page in base.partial_polls:
            if page.in_deletions:
                unseen = _not_in_snapshot(xid, page.seen_snapshot.snapshot)
                conditions.append(sql.SQL("({} OR d.id > {})").format(unseen, sql.Literal(int(page.place[-1] or 0))))
        return sql.SQL(" AND ").join(conditions)

    def _unseen(self, seen_snapshot: SeenSnapshot) -> sql.Composable:
        """Return the condition of row versions that were not visible at the seen snapshot."""
        if self.plan.stamped and seen_snapshot.seen is None:
            return _not_in_snapshot(sql.SQL("t.updated_xid"), seen_snapshot.snapshot)
        recent = sql.SQL("age(t.xmin) BETWEEN 0 AND age({}::text::xid)").format(_xid(seen_snapshot.snapshot.xmin))
        if not seen_snapshot.seen:
            return sql.SQL("({})").format(recent)
        seen_ids = sql.Literal([str(xid % (1 << 32)) for xid in sorted(seen_snapshot.seen)])
        return sql.SQL("({} AND t.xmin <> ALL ({}::text[]::xid[]))").format(recent, seen_ids)

    def alive(self) -> sql.Composable:
        """Return the condition of rows whose key belongs in the topic with a value that is not a deactivation."""
        if self.plan.connector.soft_delete is None:
            return sql.SQL("true")
        return sql.SQL("t.{} IS NOT FALSE").format(sql.Identifier(self.plan.connector.soft_delete.column))

    def present(self) -> sql.Composable:
        """Return the condition of rows whose key belongs in the topic, also deactivated ones sent as values."""
        return self.alive() if self.plan.sends_tombstones else sql.SQL("true")


def _smaller_and_equal(expression: sql.Composable, value: str | None) -> tuple[sql.Composable, sql.Composable]:
    """Return the conditions of rows that sort before a value, and of rows that equal it; NULL sorts last."""
    if value is None:
        return sql.SQL("{} IS NOT NULL").format(expression), sql.SQL("{} IS NULL").format(expression)
    parts = {"name": expression, "value": sql.Literal(value)}
    return sql.SQL("{name} < {value}").format(**parts), sql.SQL("{name} = {value}").format(**parts)


def _not_in_snapshot(column: sql.Composable, snapshot: Snapshot) -> sql.Composable:
    """Return the condition of top-level transaction ids that had not ended at the snapshot and exist by now.

    A restored dump has ids of another server: those that this server has yet to assign would look new at every poll.
    """
    is_assigned = sql.SQL("{} < pg_snapshot_xmax(pg_current_snapshot())").format(column)
    since = sql.SQL("{} >= {}::text::xid8").format(column, sql.Literal(str(snapshot.xmax)))
    condition = sql.SQL("{} AND {}").format(since, is_assigned)
    if snapshot.xip:
        running = sql.Literal([str(xid) for xid in snapshot.xip])
        condition = sql.SQL("{} OR {} = ANY ({}::text[]::xid8[])").format(condition, column, running)
    return sql.SQL("({})").format(condition)


def _xid(wide: int) -> sql.Literal:
    return sql.Literal(str(wide % (1 << 32)))

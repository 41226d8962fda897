"""Finds the tables that may have changed by one statement, the probe.

A table that the probe does not suspect is unchanged: it sees every row version that was committed since the last probe,
and every change of the catalogue. A suspected table may be unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psycopg import Error, sql

from compactory_connectors.postgres.snapshot import Snapshot

from ..planning.table_plan import TablePlan
from ..postgres.server import Server, statement

__all__ = ["ChangeDetector", "Observation"]

_NAME = sql.Identifier("compactory probe")


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the server. ``suspects`` are oids of tables that may have changed since the last probe."""

    snapshot: Snapshot
    queue_usage: float
    """Of the server's queue of notifications, 0 to 1."""
    suspects: frozenset[int] = frozenset()


class ChangeDetector:
    """Probes the tables of one session. Owned by its thread. Raises psycopg.Error.

    The first probe of a set of tables suspects all of them: poll each before the next probe.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._probed: tuple[TablePlan, ...] = ()
        self._since: Snapshot | None = None
        self._catalogue: str | None = None

    def is_last_snapshot(self, snapshot: Snapshot) -> bool:
        """Return True if the last probe had this snapshot."""
        return snapshot == self._since

    def observe(self) -> Observation:
        """Return the state of the server without suspects."""
        row = self._server.connection.execute(statement("source/snapshot_and_queue")).fetchone()
        assert row is not None
        return Observation(Snapshot.parse(row[0]), row[1])

    def probe(self, plans: Sequence[TablePlan]) -> Observation:
        """Probe these tables, in place of those of the last probe.

        If the statement fails, as while one of them is locked, all are suspects: the poll of a table shows its error.
        """
        tables = tuple(sorted(plans, key=lambda plan: plan.oid))
        try:
            if tables != self._probed:
                self._prepare(tables)
            row = self._server.connection.execute(self._execution()).fetchone()
        except Error:
            if self._server.connection.closed:
                raise
            self._forget()
            return replace(self.observe(), suspects=_oids(tables))
        assert row is not None
        snapshot, queue, catalogue, suspects = row
        is_same_catalogue = catalogue == self._catalogue or not catalogue
        self._since, self._catalogue = Snapshot.parse(snapshot), catalogue or self._catalogue
        return Observation(self._since, queue, frozenset(suspects) if is_same_catalogue else _oids(tables))

    def _prepare(self, plans: tuple[TablePlan, ...]) -> None:
        self._forget()
        oids = sql.Literal([plan.oid for plan in plans])
        tree = self._server.column(statement("source/probe_tree", oids=oids))
        question = statement(
            "source/probe",
            question=_NAME,
            tree=sql.SQL("{}::int8[]::oid[]").format(sql.Literal(tree)),
            tables=sql.SQL(", ").join(map(_evidence, plans)),
        )
        # otherwise Postgres would plan the first executions anew
        self._server.connection.execute("SET plan_cache_mode = force_generic_plan")
        self._server.connection.execute(question)
        self._probed = plans

    def _execution(self) -> sql.Composed:
        """Return the execution of the probe; without an earlier snapshot it is about all row versions."""
        since = self._since or Snapshot(3, 3)
        return sql.SQL("EXECUTE {} ({}::text::xid8, {}::text[]::xid8[], {}::text::xid, {})").format(
            _NAME,
            sql.Literal(str(since.xmax)),
            sql.Literal([str(xid) for xid in since.xip]),
            sql.Literal(str(since.xmin % (1 << 32))),
            sql.Literal(str(since)),
        )

    def _forget(self) -> None:
        if self._probed:
            self._server.connection.execute(sql.SQL("DEALLOCATE {}").format(_NAME))
        self._probed, self._since, self._catalogue = (), None, None


def _evidence(plan: TablePlan) -> sql.Composed:
    """Return an expression: the oid if the table may have changed, else NULL."""
    names = []
    if plan.adopted:
        names.append("source/probe_stamped")
    if not plan.stamped:
        names.append("source/probe_versions")
    parts = {"table": sql.Identifier(plan.schema, plan.name), "oid": sql.Literal(plan.oid)}
    return sql.SQL("coalesce({})").format(sql.SQL(", ").join(statement(name, **parts) for name in names))


def _oids(plans: Iterable[TablePlan]) -> frozenset[int]:
    return frozenset(plan.oid for plan in plans)

"""One question for many tables: which of them may have changed. Asks Postgres, and polls nothing.

A table that it calls unchanged is unchanged: every row version that was committed since the last probe is evidence, and
so is every change of the catalogue. A table that it suspects may be unchanged all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psycopg import Error, sql

from compactory_connectors.postgres.snapshot import Snapshot
from compactory_sql import WAKEUP_CHANNEL

from ..planning.table_plan import TablePlan
from ..postgres.server import Server, statement

__all__ = ["ChangeDetector", "Observation"]

_NAME = sql.Identifier("compactory probe")
_CHANNEL = sql.Literal(WAKEUP_CHANNEL)


@dataclass(frozen=True, slots=True)
class Observation:
    """The server now: its snapshot, whether it has this connection for a listener, how full the queue of NOTIFY is.

    ``suspects`` are oids of tables that may have changed since the last probe.
    """

    snapshot: Snapshot
    listening: bool
    queue: float
    suspects: frozenset[int] = frozenset()


class ChangeDetector:
    """Asks about the tables of one session. Owned by its thread. Raises psycopg.Error.

    Every table that is asked about must have been polled since the last probe that asked about others than these, as
    all of them must after the first one, which suspects them all.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asked: tuple[TablePlan, ...] = ()
        self._since: Snapshot | None = None
        self._catalogue: str | None = None

    def unchanged(self, snapshot: Snapshot) -> bool:
        """Whether this is the snapshot of the last probe."""
        return snapshot == self._since

    def observation(self) -> Observation:
        """How things are, without a word about tables."""
        row = self._server.connection.execute(statement("source/snapshot_and_queue", channel=_CHANNEL)).fetchone()
        assert row is not None
        return Observation(Snapshot.parse(row[0]), row[1], row[2])

    def look(self, plans: Sequence[TablePlan]) -> Observation:
        """Ask about these tables; of any others that were asked about before, nothing is known any more.

        Where the question can't be asked as a whole, as while somebody has locked one of them, all are suspects: what
        is wrong with a table shows when it is polled.
        """
        asked = tuple(sorted(plans, key=lambda plan: plan.oid))
        try:
            if asked != self._asked:
                self._prepare(asked)
            row = self._server.connection.execute(self._question()).fetchone()
        except Error:
            if self._server.connection.closed:
                raise
            self._forget()
            return replace(self.observation(), suspects=_oids(asked))
        assert row is not None
        snapshot, listening, queue, catalogue, suspects = row
        known = catalogue == self._catalogue or not catalogue
        self._since, self._catalogue = Snapshot.parse(snapshot), catalogue or self._catalogue
        return Observation(self._since, listening, queue, frozenset(suspects) if known else _oids(asked))

    def _prepare(self, asked: tuple[TablePlan, ...]) -> None:
        """Have the question planned, once for as long as the tables are these and as they are."""
        self._forget()
        oids = sql.Literal([plan.oid for plan in asked])
        tree = self._server.column(statement("source/probe_tree", oids=oids))
        question = statement(
            "source/probe",
            question=_NAME,
            channel=_CHANNEL,
            tree=sql.SQL("{}::int8[]::oid[]").format(sql.Literal(tree)),
            tables=sql.SQL(", ").join(map(_evidence, asked)),
        )
        # otherwise Postgres would plan it anew a few times, and then decide whether to go on with that
        self._server.connection.execute("SET plan_cache_mode = force_generic_plan")
        self._server.connection.execute(question)
        self._asked = asked

    def _question(self) -> sql.Composed:
        """The prepared question; before there is a snapshot to begin with, about everything."""
        since = self._since or Snapshot(3, 3)
        return sql.SQL("EXECUTE {} ({}::text::xid8, {}::text[]::xid8[], {}::text::xid, {})").format(
            _NAME,
            sql.Literal(str(since.xmax)),
            sql.Literal([str(xid) for xid in since.xip]),
            sql.Literal(str(since.xmin % (1 << 32))),
            sql.Literal(str(since)),
        )

    def _forget(self) -> None:
        if self._asked:
            self._server.connection.execute(sql.SQL("DEALLOCATE {}").format(_NAME))
        self._asked, self._since, self._catalogue = (), None, None


def _evidence(plan: TablePlan) -> sql.Composed:
    """The oid where the table may have changed, else NULL."""
    names = ["source/probe_stamped"] * plan.adopted + ["source/probe_versions"] * (not plan.stamped)
    parts = {"table": sql.Identifier(plan.schema, plan.name), "oid": sql.Literal(plan.oid)}
    return sql.SQL("coalesce({})").format(sql.SQL(", ").join(statement(name, **parts) for name in names))


def _oids(plans: Iterable[TablePlan]) -> frozenset[int]:
    return frozenset(plan.oid for plan in plans)

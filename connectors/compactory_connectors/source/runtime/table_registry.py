"""The tables of a session: opened, discovered, planned again, and removed, each without the others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable

from ..offsets.stored_offsets import StoredOffset, read_offsets, sharing
from ..offsets.topics import ensure_topics
from ..planning.planner import Cause, Plans, UnfitTable, find_plans
from ..planning.table_plan import TablePlan
from ..polling.table_reader import open_reader
from ..postgres.server import Server
from .offset_checks import refuse_replaced_server, start_offset
from .session_context import SessionContext
from .table_task import TableTask

__all__ = ["TableRegistry"]

log = structlog.get_logger("compactory.source")

_LOCKED_INTERVAL = 2.0  # seconds between two attempts to plan a table that is locked


class TableRegistry:
    """The tables that a session polls. Owned by its thread. Raises psycopg.Error, and the errors of Kafka's side."""

    def __init__(self, context: SessionContext, server: Server) -> None:
        self._context = context
        self._connector = context.connector
        self._server = server
        self._tables: dict[str, TableTask] = {}
        self._unfit: dict[str, tuple[str, ...]] = {}
        self._discover_at = 0.0

    def __iter__(self) -> Iterator[TableTask]:
        """Iterate over the tables that are polled now; the registry may change meanwhile."""
        return iter(list(self._tables.values()))

    @property
    def due(self) -> float:
        """The time of the next check of topics or tables, or poll of a table, by the monotonic clock."""
        return min(
            [self._context.topics.check_at, self._discover_at, *(table.wake_at for table in self._tables.values())]
        )

    def open(self, discovered: Plans, *, strict: bool) -> None:
        """Create topics, fence earlier holders, and open the tables at their offsets. All plans have been checked."""
        if strict:
            self._create_topics(discovered.plans)
        else:
            discovered = self._publishable(discovered)
        board, plans = self._context.board, discovered.plans
        board.warn(*discovered.warnings)
        refuse_replaced_server(self._connector, self._server, plans, self._stored_offsets())
        self._context.publisher.open()
        self._discover_at = time.monotonic() + self._interval
        board.retain_tables([*(plan.qualified for plan in plans), *(table.name for table in discovered.unfit)])
        self._set_unfit(discovered)
        stored = self._stored_offsets()
        offsets = [item.offset for item in stored.values() if item.connector == self._connector.name]
        sessions = {session for offset in offsets if offset and (session := offset.identity.session)}
        self._server.begin_session(self._connector.name, sessions)
        self._add(plans, stored, strict=strict)
        if not self._tables:
            log.error("nothing to poll", connector=self._connector.name, detail=self._no_tables())
            board.warn(self._no_tables())

    def close(self) -> None:
        for table in self._tables.values():
            table.close()

    def failures(self) -> list[str]:
        """Return the reasons why tables are not polled, or why there are none at all."""
        reasons = [f"{name}: {problem}" for name, problems in self._unfit.items() for problem in problems]
        details = {status.table: status.detail for status in self._context.board.picture().tables}
        for name, table in self._tables.items():
            is_polled = table.schedule.is_current and not table.schedule.is_failing
            if (not is_polled or table.cleanup.approval.is_active) and (detail := details.get(name)):
                reasons.append(detail)
        return reasons or ([] if self._tables else [self._no_tables()])

    def discover(self) -> None:
        """Look now and then for tables that were created, dropped, or can be polled by now."""
        if time.monotonic() < self._discover_at:
            return
        self._discover_at = time.monotonic() + self._interval
        if self._connector.query is not None and self._tables:
            return  # each poll looks at its columns
        discovered = find_plans(self._server, self._connector, self._planned())
        for name in [name for name in self._tables if name not in discovered.chosen]:
            self._remove(name, "was dropped or renamed")
        names = [table.plan.name for table in self._tables.values()] + [plan.name for plan in discovered.plans]
        unique_plans = tuple(plan for plan in discovered.plans if names.count(plan.name) == 1)
        discovered = self._publishable(replace(discovered, plans=unique_plans))
        self._set_unfit(discovered)
        if discovered.plans:
            log.info("tables found", tables=[plan.qualified for plan in discovered.plans])
            self._add(discovered.plans)
        self._context.board.warn(*discovered.problems)
        if not self._tables:
            log.error("nothing to poll", connector=self._connector.name, detail=self._no_tables())

    def plan_again(self, table: TableTask) -> None:
        """Plan a table again that changed, and go on at its offset."""
        if self._tables.get(table.name) is not table:
            return  # it was planned again since
        discovered = find_plans(self._server, self._connector, self._planned() - {(table.plan.oid, table.name)})
        discovered = self._publishable(
            replace(discovered, plans=tuple(plan for plan in discovered.plans if plan.qualified == table.name))
        )
        if not discovered.plans:
            reason = "was dropped, renamed, or can't be polled any more"
            self._remove(table.name, "; ".join(discovered.problems) if self._connector.query is not None else reason)
            self._set_unfit(discovered)
            return
        log.info("table changed", table=table.name)
        self._add(discovered.plans)

    def restart(self, name: str) -> None:
        """Forget that a table failed, and plan it again at once."""
        self._discover_at = 0.0
        if (table := self._tables.get(name)) is not None:
            self.plan_again(table)

    @property
    def _interval(self) -> float:
        return self._connector.table_poll_interval_ms / 1000

    def _no_tables(self) -> str:
        """Return the reason why the connector has no tables."""
        reason = self._connector.selection.nothing(self._connector.connection.server)
        return f"{reason}; looked for again every {self._interval:g} s (table.poll.interval.ms)"

    def _publishable(self, discovered: Plans) -> Plans:
        """Return the plans without those whose topics are missing or do not fit: these become unfit."""
        try:
            self._create_topics(discovered.plans)
        except Unreachable:
            raise
        except CompactoryError as error:
            if len(discovered.plans) > 1:
                return self._publishable_each(discovered)
            problems = tuple(error.problems if isinstance(error, ConfigError) else [str(error)])
            unfit = tuple(UnfitTable(plan.qualified, problems) for plan in discovered.plans)
            return replace(discovered, plans=(), unfit=discovered.unfit + unfit)
        return discovered

    def _publishable_each(self, discovered: Plans) -> Plans:
        plans, unfit = list[TablePlan](), list(discovered.unfit)
        for plan in discovered.plans:
            checked = self._publishable(replace(discovered, plans=(plan,), unfit=()))
            plans += checked.plans
            unfit += checked.unfit
        return replace(discovered, plans=tuple(plans), unfit=tuple(unfit))

    def _create_topics(self, plans: Iterable[TablePlan]) -> None:
        topics = {topic: self._connector.topics for plan in plans for topic in plan.rows.topics}
        self._context.board.warn(*ensure_topics(self._context.kafka, topics, create=self._context.create_topics))
        self._context.board.warn(*(warning for plan in plans for warning in plan.warnings))

    def _add(
        self, plans: Sequence[TablePlan], stored: Mapping[bytes, StoredOffset] | None = None, *, strict: bool = False
    ) -> None:
        """Open these tables, each at its offset; a damaged offset leaves its table out unless ``strict``."""
        if not plans:
            return
        stored = self._stored_offsets() if stored is None else stored
        self._context.topics.add(topic for plan in plans for topic in plan.rows.topics)
        for plan in plans:
            try:
                self._open(plan, stored)
            except CompactoryError as error:
                if strict:
                    raise
                log.error("table can't be polled", table=plan.qualified, problems=[str(error)])
                self._unfit[plan.qualified] = (str(error),)
                self._context.board.reject_table(plan.qualified, str(error))
        self._note_neighbours()

    def _open(self, plan: TablePlan, stored: Mapping[bytes, StoredOffset]) -> None:
        database, name, topics = self._server.database, plan.qualified, self._context.topics
        topic, known_end = topics.identity(plan.topic), topics.known_ends[plan.topic]
        offset = start_offset(stored.get(plan.offset_key(database)), topic, plan, known_end)
        is_query = plan.connector.query is not None
        task = TableTask(
            self._context,
            self._server,
            open_reader(self._server, plan, offset, topic),
            partitions=topics.count_partitions(plan.rows.topics),
            neighbours=[] if is_query else sharing(plan.topic, f"{database}.{name}", stored.values()),
        )
        if (former := self._tables.get(name)) is not None:
            former.close()
        self._tables[name] = task
        self._context.board.add_table(name, plan.topic, adopted=plan.adopted, reading=plan.reading)
        if offset is None:
            self._context.board.warn(*plan.load_warnings)
        facts = {"topic": plan.topic, "rows_found_by": plan.reading.value, "adopted": plan.adopted}
        log.info("table", table=name, **facts, resumed=offset is not None)

    def _stored_offsets(self) -> dict[bytes, StoredOffset]:
        """Return the offsets of all connectors, by the keys of their records."""
        return {item.key: item for item in read_offsets(self._context.kafka)}

    def _note_neighbours(self) -> None:
        """Tell tables that share a topic of each other; offsets only know of tables that were polled before."""
        by_topic: dict[str, list[TableTask]] = {}
        for table in self._tables.values():
            for topic in table.plan.rows.topics:
                by_topic.setdefault(topic, []).append(table)
        for tables in by_topic.values():
            names = {f"{self._server.database}.{table.name}": table for table in tables}
            for name, table in names.items():
                table.neighbours += [
                    neighbour for neighbour in names if neighbour != name and neighbour not in table.neighbours
                ]

    def _planned(self) -> set[tuple[int, str]]:
        return {(table.plan.oid, table.name) for table in self._tables.values()}

    def _remove(self, name: str, reason: str) -> None:
        table = self._tables.pop(name)
        table.close()
        log.error("table gone", table=name, detail=reason)
        is_listed = any(listed.name == table.plan.name for listed in self._connector.selection.listed)
        if is_listed or self._connector.query is not None:
            detail = f"table {name} {reason}; looked for again every {self._interval:g} s"
            self._context.board.reject_table(name, detail)
        else:
            self._context.board.remove_table(name)

    def _set_unfit(self, discovered: Plans) -> None:
        """Show tables that can't be polled; stop those of them that were polled until now."""
        previous, self._unfit = self._unfit, {table.name: table.problems for table in discovered.unfit}
        for name, problems in self._unfit.items():
            if (table := self._tables.pop(name, None)) is not None:
                table.close()
            if previous.get(name) != problems:
                log.error("table can't be polled", table=name, problems=problems)
            self._context.board.reject_table(name, "; ".join(problems))
        for unfit in discovered.unfit:
            if unfit.cause is Cause.LOCKED:
                self._context.board.record_locked(unfit.name, unfit.problems[0])
                self._discover_at = min(self._discover_at, time.monotonic() + _LOCKED_INTERVAL)

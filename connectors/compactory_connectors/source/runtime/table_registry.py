"""The tables of a session: made ready, found anew, planned again, and forgotten, one without the others.

Owned by the session's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.records import Topic

from ..offsets.offset import SourceOffset
from ..offsets.stored_offsets import StoredOffset, read_offsets, sharing
from ..offsets.topics import ensure_topics
from ..planning.planner import Cause, Plans, UnfitTable, find_plans
from ..planning.table_plan import TablePlan
from ..polling.readers import open_reader
from ..postgres.server import Server
from .resume import refuse_left_behind, stored_offset, usable
from .table_task import SessionContext, TableTask

__all__ = ["TOPICS_EVERY", "TableRegistry", "TopicReplaced"]

log = structlog.get_logger("compactory.source")

TOPICS_EVERY = 5.0
"""Seconds between two looks whether a topic was deleted and created again."""


_LOCKED_EVERY = 2.0  # seconds between two looks at a table that was locked when its plan was to be made


class TopicReplaced(CompactoryError):
    """A topic that the source publishes to is another one now; a new session looks again."""

    retryable = True


class TableRegistry:
    """The tables that a session polls. Raises psycopg.Error, and the errors of Kafka's side."""

    def __init__(self, context: SessionContext, server: Server) -> None:
        self._context = context
        self._connector = context.connector
        self._server = server
        self._tables: dict[str, TableTask] = {}
        self._unfit: dict[str, tuple[str, ...]] = {}
        self._topics: dict[str, Topic] = {}  # as they were when a table was opened
        self._look_at_topics = 0.0
        self._look_at_tables = 0.0

    def __iter__(self) -> Iterator[TableTask]:
        """The tables that are polled now; the table registry may change meanwhile."""
        return iter(list(self._tables.values()))

    @property
    def due(self) -> float:
        """When to look again for tables or topics, or to poll one, by the monotonic clock."""
        return min([self._look_at_topics, self._look_at_tables, *(table.wake_at for table in self._tables.values())])

    def begin(self, found: Plans, *, strict: bool) -> None:
        """Everything was checked: make topics, fence earlier holders, go on from the offsets."""
        if strict:
            self._make_topics(found.plans)
        else:
            found = self._publishable(found)
        plans = found.plans
        self._context.board.warn(*found.warnings)
        refuse_left_behind(self._connector, self._server, plans, self._stored())
        self._context.publisher.open()
        self._look_at_tables = time.monotonic() + self._connector.table_poll_interval_ms / 1000
        self._context.board.retain_tables([*(plan.qualified for plan in plans), *(table.name for table in found.unfit)])
        self._note_unfit(found)
        stored = self._stored()
        offsets = [item.offset for item in stored.values() if item.connector == self._connector.name]
        sessions = {session for offset in offsets if offset and (session := offset.identity.session)}
        self._server.begin_session(self._connector.name, sessions)
        self._add(plans, stored, strict=strict)
        if not self._tables:
            log.error("nothing to poll", connector=self._connector.name, detail=self._nothing())
            self._context.board.warn(self._nothing())

    def failures(self) -> list[str]:
        """The reasons why tables are not polled, or why there are none at all."""
        found = [f"{name}: {problem}" for name, its in self._unfit.items() for problem in its]
        found += [
            table.detail for table in self._context.board.picture().tables if table.detail and self._failed(table.table)
        ]
        return found or ([] if self._tables else [self._nothing()])

    def check_topics(self) -> None:
        """Look now and then whether the topics are still those that the offsets are about."""
        if time.monotonic() < self._look_at_topics:
            return
        self._look_at_topics = time.monotonic() + TOPICS_EVERY
        found = self._context.kafka.topics(self._topics) if self._topics else {}
        for name, known in self._topics.items():
            if name not in found or found[name].topic_id != known.topic_id:
                raise TopicReplaced(
                    f"topic {name!r} was deleted, or deleted and created again, since this session began"
                )
        grown = [name for name, known in self._topics.items() if len(found[name].partitions) != len(known.partitions)]
        self._check_ends(found)
        if grown:  # the producer must not go on with the old number
            raise TopicReplaced(f"topic {grown[0]!r} has {len(found[grown[0]].partitions)} partitions now")

    def _check_ends(self, topics: Mapping[str, Topic]) -> None:
        if behind := self._context.ends.look(topics):
            raise TopicReplaced(f"topic {behind[0]!r} ends before its last written record: an older copy was put back")

    def close(self) -> None:
        """Stop the sweeps that go on between polls."""
        for table in self._tables.values():
            table.cleanup.close()

    def check_tables(self) -> None:
        """Look now and then for tables that came, went, or can be polled by now; the others are left alone."""
        if time.monotonic() < self._look_at_tables:
            return
        self._look_at_tables = time.monotonic() + self._connector.table_poll_interval_ms / 1000
        if self._connector.query is not None and self._tables:
            return  # each poll looks at its columns
        found = find_plans(self._server, self._connector, self._known())
        for name in [name for name in self._tables if name not in found.chosen]:
            self._remove(name, "was dropped or renamed")
        taken = [table.plan.name for table in self._tables.values()] + [plan.name for plan in found.plans]
        fresh = tuple(plan for plan in found.plans if taken.count(plan.name) == 1)
        found = self._publishable(replace(found, plans=fresh))
        self._note_unfit(found)
        if found.plans:
            log.info("tables found", tables=[plan.qualified for plan in found.plans])
            self._add(found.plans)
        self._context.board.warn(*found.problems)
        if not self._tables:
            log.error("nothing to poll", connector=self._connector.name, detail=self._nothing())

    def plan_again(self, table: TableTask) -> None:
        """The table is another one now: look at it again, and go on where its offset says."""
        if self._tables.get(table.name) is not table:
            return  # that was done since
        found = find_plans(self._server, self._connector, self._known(but=table))
        mine = tuple(plan for plan in found.plans if plan.qualified == table.name)
        found = self._publishable(replace(found, plans=mine))
        if not found.plans:
            gone = "was dropped, renamed, or can't be polled any more"
            self._remove(table.name, "; ".join(found.problems) if table.plan.connector.query is not None else gone)
            self._note_unfit(found)
            return
        log.info("table changed", table=table.name)
        self._add(found.plans)

    def restart(self, name: str) -> None:
        """Forget that a table failed, and look at it again at once."""
        self._look_at_tables = 0.0
        if (table := self._tables.get(name)) is not None:
            self.plan_again(table)

    def forget_unsent(self, table: TableTask) -> None:
        """Rows of the last poll were not published: read on from the last one that was."""
        table.go_on_with(open_reader(self._server, table.plan, table.reader.offset, self._topic_of(table.plan)))

    def _nothing(self) -> str:
        interval = self._connector.table_poll_interval_ms / 1000
        nothing = self._connector.selection.nothing(self._connector.connection.server)
        return f"{nothing}; looked for again every {interval:g} s (table.poll.interval.ms)"

    def _publishable(self, found: Plans) -> Plans:
        """Without plans whose topics are missing or do not fit; those are among the unfit then, with the reason."""
        try:
            self._make_topics(found.plans)
        except Unreachable:
            raise
        except CompactoryError as error:
            if len(found.plans) > 1:
                return self._one_by_one(found)
            problems = tuple(error.problems if isinstance(error, ConfigError) else [str(error)])
            unfit = tuple(UnfitTable(plan.qualified, problems) for plan in found.plans)
            return replace(found, plans=(), unfit=found.unfit + unfit)
        return found

    def _one_by_one(self, found: Plans) -> Plans:
        each = [self._publishable(replace(found, plans=(plan,), unfit=())) for plan in found.plans]
        plans = tuple(plan for one in each for plan in one.plans)
        return replace(found, plans=plans, unfit=found.unfit + tuple(unfit for one in each for unfit in one.unfit))

    def _make_topics(self, plans: Iterable[TablePlan]) -> None:
        rules = self._connector.topics
        topics = {topic: rules.of(topic) for plan in plans for topic in plan.rows.topics}
        self._context.board.warn(*ensure_topics(self._context.kafka, topics, create=self._context.create_topics))
        self._context.board.warn(*(warning for plan in plans for warning in plan.warnings))

    def _add(
        self, plans: Sequence[TablePlan], stored: Mapping[bytes, StoredOffset] | None = None, *, strict: bool = False
    ) -> None:
        """Begin to poll these tables, each from its offset; a damaged offset leaves its table out unless ``strict``."""
        if not plans:
            return
        stored = self._stored() if stored is None else stored
        topics = self._context.kafka.topics({topic for plan in plans for topic in plan.rows.topics})
        self._check_ends(topics)
        self._topics |= topics
        for plan in plans:
            key = plan.offset_key(self._server.database)
            topic = self._topic_of(plan)
            try:
                known = stored_offset(stored.get(key), plan)
            except CompactoryError as error:
                if strict:
                    raise
                self._leave_out(plan.qualified, str(error))
                continue
            name = f"{self._server.database}.{plan.qualified}"
            others = sharing(plan.topic, name, stored.values()) if plan.connector.query is None else []
            self._open(plan, key, usable(known, topic, plan, self._context.ends), topic, others)
        self._note_neighbours()

    def _topic_of(self, plan: TablePlan) -> tuple[str, str | None]:
        """Name and id of a plan's topic."""
        return plan.topic, self._topics[plan.topic].topic_id if plan.topic in self._topics else None

    def _stored(self) -> dict[bytes, StoredOffset]:
        """The offsets of all connectors, by the keys of their records."""
        return {item.key: item for item in read_offsets(self._context.kafka)}

    def _note_neighbours(self) -> None:
        """Tell tables that share a topic of each other; offsets say so only of tables that were polled before."""
        by_topic: dict[str, list[TableTask]] = {}
        for table in self._tables.values():
            for topic in table.plan.rows.topics:
                by_topic.setdefault(topic, []).append(table)
        for tables in by_topic.values():
            names = [f"{self._server.database}.{table.name}" for table in tables]
            for table, own in zip(tables, names, strict=True):
                table.others += [name for name in names if name != own and name not in table.others]

    def _open(
        self,
        plan: TablePlan,
        key: bytes,
        offset: SourceOffset | None,
        topic: tuple[str, str | None],
        others: list[str],
    ) -> None:
        reader = open_reader(self._server, plan, offset, topic)
        if (former := self._tables.get(plan.qualified)) is not None:
            former.cleanup.close()
        spread = sum(len(self._topics[name].partitions) for name in plan.rows.topics if name in self._topics)
        self._tables[plan.qualified] = TableTask(
            context=self._context, server=self._server, reader=reader, key=key, others=others, partitions=spread
        )
        name = plan.qualified
        self._context.board.add_table(name, plan.topic, adopted=plan.adopted, reading=plan.reading)
        if offset is None:
            self._context.board.warn(*plan.load_warnings)
        resumed = offset is not None
        log.info(
            "table",
            table=name,
            topic=plan.topic,
            rows_found_by=plan.reading.value,
            adopted=plan.adopted,
            resumed=resumed,
        )

    def _known(self, *, but: TableTask | None = None) -> set[tuple[int, str]]:
        """Tables that need not be planned again."""
        return {(table.plan.oid, table.name) for table in self._tables.values() if table is not but}

    def _remove(self, name: str, why: str) -> None:
        table = self._tables.pop(name)
        table.cleanup.close()
        log.error("table gone", table=name, detail=why)
        interval = self._connector.table_poll_interval_ms / 1000
        listed = any(listed.name == table.plan.name for listed in self._connector.selection.listed)
        if listed or table.plan.connector.query is not None:
            self._context.board.reject_table(name, f"table {name} {why}; looked for again every {interval:g} s")
        else:
            self._context.board.remove_table(name)

    def _note_unfit(self, found: Plans) -> None:
        """Show tables that can't be polled; those that were polled until now stop."""
        before, self._unfit = self._unfit, {table.name: table.problems for table in found.unfit}
        for name, problems in self._unfit.items():
            if (table := self._tables.pop(name, None)) is not None:
                table.cleanup.close()
            if before.get(name) != problems:
                log.error("table can't be polled", table=name, problems=problems)
            self._context.board.reject_table(name, "; ".join(problems))
        for unfit in found.unfit:
            if unfit.cause is Cause.LOCKED:
                self._context.board.record_locked(unfit.name, unfit.problems[0])
                self._look_at_tables = min(self._look_at_tables, time.monotonic() + _LOCKED_EVERY)

    def _leave_out(self, name: str, why: str) -> None:
        log.error("table can't be polled", table=name, problems=[why])
        self._unfit[name] = (why,)
        self._context.board.reject_table(name, why)

    def _failed(self, name: str) -> bool:
        table = self._tables.get(name)
        return table is not None and (
            table.schedule.ailing or not table.schedule.fresh or table.cleanup.approval.active
        )

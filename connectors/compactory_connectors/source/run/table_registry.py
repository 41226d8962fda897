"""The tables of a session: made ready, found anew, planned again, and forgotten, one without the others.

Owned by the session's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.records import Topic

from ..cursor.offset import SourceOffset, sessions_of, sharing
from ..plan.planning import Plans, find_plans
from ..plan.table_plan import TablePlan, key_of
from ..poll.readers import open_reader
from ..postgres.server import Server
from ..publish.topics import OFFSETS_TOPIC, ensure, stored_values
from .table_task import SessionContext, TableTask

__all__ = ["TOPICS_EVERY", "LeftBehind", "TableRegistry", "TopicReplaced"]

log = structlog.get_logger("compactory.source")

TOPICS_EVERY = 5.0
"""Seconds between two looks whether a topic was deleted and created again."""


_LOCKED_EVERY = 2.0  # seconds between two looks at a table that was locked when its plan was to be made


class LeftBehind(CompactoryError):
    """The server is a primary that a promoted standby has replaced; what it says is old."""

    retryable = True


class TopicReplaced(CompactoryError):
    """A topic that the source publishes to is another one now; a new session looks again."""

    retryable = True


class TableRegistry:
    """Which tables a session polls. Raises psycopg.Error, and what Kafka's side raises."""

    def __init__(self, context: SessionContext, server: Server) -> None:
        self._context = context
        self._connector = context.connector
        self._server = server
        self._tables: dict[str, TableTask] = {}
        self._unfit: dict[str, tuple[str, ...]] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._spread: dict[str, int] = {}  # partitions of each topic
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
        plans, found = (found.plans, found) if strict else self._publishable(found)
        self._context.board.warn(*found.warnings)
        self._refuse_left_behind(plans)
        self._context.publisher.open()
        self._look_at_tables = time.monotonic() + self._connector.table_poll_interval_ms / 1000
        self._context.board.only([*(plan.qualified for plan in plans), *(name for name, _ in found.unfit)])
        self._note_unfit(found)
        values = stored_values(self._context.kafka)
        self._server.begin_session(self._connector.name, sessions_of(self._connector.name, values))
        self._add(plans, values, strict=strict)
        if not self._tables:
            log.error("nothing to poll", connector=self._connector.name, detail=self._nothing())
            self._context.board.warn(self._nothing())

    def failures(self) -> list[str]:
        """What keeps tables from being polled, and whether there are none at all."""
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
        found = self._context.kafka.topics(self._topic_ids) if self._topic_ids else {}
        for name, topic_id in self._topic_ids.items():
            if name not in found or found[name].topic_id != topic_id:
                raise TopicReplaced(
                    f"topic {name!r} was deleted, or deleted and created again, since this session began"
                )
        grown = [name for name, topic in found.items() if len(topic.partitions) != self._spread.get(name)]
        self._check_ends(found)
        if grown:  # the producer must not go on with what it knows of them
            raise TopicReplaced(f"topic {grown[0]!r} has {len(found[grown[0]].partitions)} partitions now")

    def _check_ends(self, topics: Mapping[str, Topic]) -> None:
        if behind := self._context.ends.look(topics):
            raise TopicReplaced(f"topic {behind[0]!r} ends before what was written to it: an older copy was put back")

    def close(self) -> None:
        """Stop what tables do between their polls."""
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
        fresh, found = self._publishable(replace(found, plans=fresh))
        self._note_unfit(found)
        if fresh:
            log.info("tables found", tables=[plan.qualified for plan in fresh])
            self._add(fresh)
        self._context.board.warn(*found.problems)
        if not self._tables:
            log.error("nothing to poll", connector=self._connector.name, detail=self._nothing())

    def plan_again(self, table: TableTask) -> None:
        """The table is another one now: look at it again, and go on where its offset says."""
        if self._tables.get(table.name) is not table:
            return  # that was done since
        found = find_plans(self._server, self._connector, self._known(but=table))
        mine = tuple(plan for plan in found.plans if plan.qualified == table.name)
        plans, found = self._publishable(replace(found, plans=mine))
        if not plans:
            gone = "was dropped, renamed, or can't be polled any more"
            self._remove(table.name, "; ".join(found.problems) if table.plan.query is not None else gone)
            self._note_unfit(found)
            return
        log.info("table changed", table=table.name)
        self._add(plans)

    def restart(self, name: str) -> None:
        """Forget that a table failed, and look at it again at once."""
        self._look_at_tables = 0.0
        if (table := self._tables.get(name)) is not None:
            self.plan_again(table)

    def forget_unsent(self, table: TableTask) -> None:
        """What the last poll read was not published: read on from what was."""
        topic = (table.plan.topic, self._topic_ids.get(table.plan.topic))
        table.go_on_with(open_reader(self._server, table.plan, table.reader.offset, topic))

    def _nothing(self) -> str:
        interval = self._connector.table_poll_interval_ms / 1000
        nothing = self._connector.selection.nothing(self._connector.connection.server)
        return f"{nothing}; looked for again every {interval:g} s (table.poll.interval.ms)"

    def _publishable(self, found: Plans) -> tuple[tuple[TablePlan, ...], Plans]:
        """Plans whose topics are there and fit; what is wrong with the others is among the unfit then."""
        try:
            self._make_topics(found.plans)
        except Unreachable:
            raise
        except CompactoryError:
            return self._one_by_one(found)
        return found.plans, found

    def _one_by_one(self, found: Plans) -> tuple[tuple[TablePlan, ...], Plans]:
        unfit = list(found.unfit)
        fit: list[TablePlan] = []
        for plan in found.plans:
            try:
                self._make_topics([plan])
            except Unreachable:
                raise
            except CompactoryError as error:
                problems = error.problems if isinstance(error, ConfigError) else [str(error)]
                unfit.append((plan.qualified, tuple(problems)))
            else:
                fit.append(plan)
        return tuple(fit), replace(found, unfit=tuple(unfit))

    def _make_topics(self, plans: Iterable[TablePlan]) -> None:
        rules = self._connector.topics
        topics = {topic: rules.of(topic) for plan in plans for topic in plan.rows.topics}
        self._context.board.warn(*ensure(self._context.kafka, topics, create=self._context.create_topics))
        self._context.board.warn(*(warning for plan in plans for warning in plan.warnings))

    def _add(
        self, plans: Iterable[TablePlan], values: Mapping[bytes, bytes] | None = None, *, strict: bool = False
    ) -> None:
        """Begin to poll these tables, each from its offset; a damaged offset leaves its table out unless ``strict``."""
        plans = list(plans)
        if not plans:
            return
        values = stored_values(self._context.kafka) if values is None else values
        topics = self._context.kafka.topics({topic for plan in plans for topic in plan.rows.topics})
        self._check_ends(topics)
        self._topic_ids |= {name: found.topic_id for name, found in topics.items()}
        self._spread |= {name: len(found.partitions) for name, found in topics.items()}
        for plan in plans:
            key = key_of(self._connector.name, self._server.database, plan)
            topic = (plan.topic, self._topic_ids.get(plan.topic))
            try:
                stored = self._offset(values.get(key), plan)
            except CompactoryError as error:
                if strict:
                    raise
                self._leave_out(plan.qualified, str(error))
                continue
            self._open(plan, key, self._usable(stored, topic, plan), topic, sharing(plan.topic, key, values))
        self._note_neighbours()

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
        spread = sum(self._spread.get(name, 0) for name in plan.rows.topics)
        self._tables[plan.qualified] = TableTask(
            context=self._context, server=self._server, reader=reader, key=key, others=others, partitions=spread
        )
        self._context.board.table(
            plan.qualified,
            plan.topic,
            adopted=plan.adopted,
            reading=plan.reading.value,
            covered=plan.reading.covered,
        )
        if offset is None:
            self._context.board.warn(*plan.load_warnings)
        log.info(
            "table",
            table=plan.qualified,
            topic=plan.topic,
            reading=plan.reading.name,
            adopted=plan.adopted,
            resumed=offset is not None,
        )

    def _refuse_left_behind(self, plans: Iterable[TablePlan]) -> None:
        """Raise LeftBehind before the source of the promoted server, which is right, is fenced."""
        values = stored_values(self._context.kafka)
        for plan in plans:
            try:
                stored = self._offset(values.get(key_of(self._connector.name, self._server.database, plan)), plan)
            except CompactoryError:
                continue  # told where the table is opened
            here = self._server.identity(plan.oid)
            if stored is not None and stored.identity.ahead_of(here):
                raise LeftBehind(
                    f"the server at {self._connector.connection.server} is on timeline {here.timeline}, and"
                    f" {plan.qualified} was already read on timeline {stored.identity.timeline} of the same system: an"
                    " old primary that nobody shut down? Shut it down, or leave it out of connection.url (with several"
                    " hosts, loadBalanceHosts=true finds the other one); where an old backup was restored on purpose,"
                    " compactory source offsets reset has its tables loaded afresh"
                )

    def _usable(
        self, offset: SourceOffset | None, topic: tuple[str, str | None], plan: TablePlan
    ) -> SourceOffset | None:
        if offset is not None and offset.topic is None:  # set by hand, for whatever topic it is
            return replace(offset, topic=topic)
        if offset is not None and offset.topic != topic:
            log.warning("another topic than before: the table is loaded afresh", table=plan.qualified, topic=topic)
            return None
        if offset is not None and offset.topic_end > self._context.ends.after(plan.topic, 0):
            log.warning("an older copy of the topic was put back: all rows are read", table=plan.qualified, topic=topic)
            return offset.without_topic(sweep=plan.sweeps)
        return offset

    def _offset(self, value: bytes | None, plan: TablePlan) -> SourceOffset | None:
        if value is None:
            return None
        try:
            return SourceOffset.loads(value)
        except ValueError as error:
            raise CompactoryError(
                f"the offset of {plan.qualified} in topic {OFFSETS_TOPIC!r} can't be read ({error}); it was written by"
                " something else or a newer version; compactory source offsets reset forgets it, and the next run loads"
                " the table afresh"
            ) from error

    def _known(self, *, but: TableTask | None = None) -> set[tuple[int, str]]:
        """Tables that need not be planned again."""
        return {(table.plan.oid, table.name) for table in self._tables.values() if table is not but}

    def _remove(self, name: str, why: str) -> None:
        table = self._tables.pop(name)
        table.cleanup.close()
        log.error("table gone", table=name, detail=why)
        interval = self._connector.table_poll_interval_ms / 1000
        listed = any(listed.name == table.plan.name for listed in self._connector.selection.listed)
        if listed or table.plan.query is not None:
            self._context.board.unfit(name, f"table {name} {why}; looked for again every {interval:g} s")
        else:
            self._context.board.gone(name)

    def _note_unfit(self, found: Plans) -> None:
        """Show tables that can't be polled; those that were polled until now stop."""
        before, self._unfit = self._unfit, dict(found.unfit)
        for name, problems in self._unfit.items():
            if (table := self._tables.pop(name, None)) is not None:
                table.cleanup.close()
            if before.get(name) != problems:
                log.error("table can't be polled", table=name, problems=problems)
            self._context.board.unfit(name, "; ".join(problems))
            if name in found.locked:
                self._context.board.table_waits(name, problems[0])
                self._look_at_tables = min(self._look_at_tables, time.monotonic() + _LOCKED_EVERY)

    def _leave_out(self, name: str, why: str) -> None:
        log.error("table can't be polled", table=name, problems=[why])
        self._unfit[name] = (why,)
        self._context.board.unfit(name, why)

    def _failed(self, name: str) -> bool:
        table = self._tables.get(name)
        return table is not None and (table.ailing or not table.poll_interval.fresh or table.cleanup.approval.active)

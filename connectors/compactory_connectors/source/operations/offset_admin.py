"""Stored offsets of a connector's tables, for a person who reads or edits them.

An edit is decided twice: once to show it, and again when earlier sources are fenced and no offset moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import length

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Cursor, Edit, Phase
from ..offsets.stored_offsets import StoredOffset, matching_tables, read_offsets
from ..planning.planner import plan_tables
from ..planning.table_plan import Reading, TablePlan
from ..polling.table_reader import TableReader, open_reader
from ..postgres.server import Server, connected
from .connect_offsets import ConnectOffset, find_offset
from .offset_edit import Decide, OffsetChange, edit_offsets, imported_offset, moved_offset, refuse_running

__all__ = ["OffsetAdmin", "Preview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """An edit before it is written. A poll would send ``due`` rows without it and ``rows`` rows after it."""

    change: OffsetChange
    due: int | None = None
    rows: int | None = None


class OffsetAdmin:
    """Owned by one thread; closes its connection when :meth:`open` ends. Raises the errors of a session.

    The methods ``decide_…`` return the changes of an edit of ``names`` (all tables if empty) to ``stored`` offsets.
    """

    def __init__(self, connector: ConnectorConfig, kafka: Kafka, server: Server) -> None:
        self._connector = connector
        self._kafka = kafka
        self._server = server

    @classmethod
    @contextmanager
    def open(cls, connector: ConnectorConfig, kafka: Kafka) -> Iterator[OffsetAdmin]:
        """Connect to Postgres. Raises ConfigError and Unreachable."""
        with connected(connector.connection) as server:
            yield cls(connector, kafka, server)

    @cached_property
    def plans(self) -> dict[str, TablePlan]:
        """The connector's tables, by ``db.schema.table``. Raises ConfigError with all problems."""
        plans = plan_tables(self._server, self._connector)
        return {plan.full_name(self._server.database): plan for plan in plans}

    def stored(self) -> dict[bytes, StoredOffset]:
        return {item.key: item for item in read_offsets(self._kafka) if item.connector == self._connector.name}

    def key(self, table: str) -> bytes:
        return self.plans[table].offset_key(self._server.database)

    def count(self, table: str, offset: SourceOffset | None) -> int:
        """Return the number of rows that a poll from this offset would take now."""
        return open_reader(self._server, self.plans[table], offset).count()

    def decide_reset(self, names: Sequence[str], stored: Sequence[StoredOffset]) -> list[OffsetChange]:
        """Forget offsets, whether or not their tables still exist."""
        by_table = {item.table: item for item in stored if item.value is not None}
        chosen = [by_table[name] for name in (matching_tables(list(by_table), names) if by_table else ())]
        return [OffsetChange(key=item.key, table=item.table, topic=None, previous=item, offset=None) for item in chosen]

    def decide_set(
        self,
        names: Sequence[str],
        cursor: Cursor,
        edit: Edit,
        stored: Sequence[StoredOffset],
        *,
        includes_time: bool = False,
    ) -> list[OffsetChange]:
        """Set offsets to a cursor; with ``includes_time`` rows of its timestamp are sent as well.

        Raises ConfigError for a cursor that does not fit the mode, and for a damaged offset.
        """
        by_key = {item.key: item for item in stored}
        changes = []
        for name in matching_tables(list(self.plans), names):
            start = cursor
            if includes_time and not self.plans[name].incrementing:  # rows later than one microsecond before that time
                start = Cursor.from_micros((cursor.micros or 0) - 1)
            changes.append(self._set(name, start, by_key.get(self.key(name)), edit))
        return changes

    def decide_import(
        self,
        names: Sequence[str],
        offsets: Sequence[ConnectOffset],
        edit: Edit,
        stored: Sequence[StoredOffset],
        *,
        by_cursor: bool,
    ) -> list[OffsetChange]:
        """Go on from Kafka Connect's offsets. Raises ConfigError for tables that were polled already."""
        chosen = [
            name for name in matching_tables(list(self.plans), names) if self.plans[name].reading is not Reading.WHOLE
        ]
        if not chosen:
            raise ConfigError("mode bulk sends every table whole at each poll: there is no offset to import")
        by_key = {item.key: item for item in stored}
        polled = [name for name in chosen if _was_polled(by_key.get(self.key(name)))]
        if polled:
            raise ConfigError(
                f"table {name} has an offset of this connector already, newer than Kafka Connect's; forget it"
                f" first: compactory source offsets reset --table {name}"
                for name in polled
            )
        return [self._import(name, offsets, by_key.get(self.key(name)), edit, by_cursor=by_cursor) for name in chosen]

    def unused(self, offsets: Sequence[ConnectOffset]) -> list[str]:
        """Return the tables of which Kafka Connect has offsets and that this connector does not read."""
        matches = [find_offset(offsets, self._connect_table(name)) for name in self.plans]
        used_keys = {offset.key for offset in matches if offset is not None}
        return [item.table or "query" for item in offsets if item.key not in used_keys and item.cursor is not None]

    def preview(self, decide: Decide) -> list[Preview]:
        """Return the effect of an edit, counted; nothing is written."""
        return [self._preview(change) for change in decide(list(self.stored().values()))]

    def write(self, decide: Decide, edit: Edit, *, force: bool) -> list[OffsetChange]:
        """Write an edit. Raises LeaseLost while a source of the connector runs; with ``force`` it is fenced."""
        check = partial(refuse_running, self._connector, self._server, force=force)
        check()
        return edit_offsets(self._connector, self._kafka, decide, edit, check)

    def _present_offset(self, plan: TablePlan) -> SourceOffset | None:
        """Return the offset of a table of which everything was polled now; None for one without row versions."""
        reader = open_reader(self._server, plan, None)
        return reader.as_of_now() if isinstance(reader, TableReader) and plan.reading is Reading.VERSIONS else None

    def _connect_table(self, name: str) -> tuple[str, str, str] | None:
        plan = self.plans[name]
        return None if plan.connector.query is not None else (self._server.database, plan.schema, plan.name)

    @cached_property
    def _topics(self) -> Mapping[str, tuple[str, str | None]]:
        topics = self._kafka.topics({plan.topic for plan in self.plans.values()})
        return {name: (name, topic.topic_id) for name, topic in topics.items()}

    def _set(self, name: str, cursor: Cursor, previous: StoredOffset | None, edit: Edit) -> OffsetChange:
        plan = self.plans[name]
        if previous is not None and previous.problem is not None:
            raise ConfigError(f"table {name}: its offset can't be read ({previous.problem}); reset it first")
        start = previous.offset if previous is not None else None
        present = self._present_offset(plan) if start is None else None
        offset = moved_offset(plan, start, cursor, topic=self._topics.get(plan.topic), edit=edit, present=present)
        note = ""
        if plan.reading is not Reading.CURSOR and start is None:
            note = "rows up to there are never sent, unless they change"
        elif offset.phase is not Phase.REWINDING and plan.reading is Reading.VERSIONS:
            note = "the first load is not finished: every row is sent anyway"
        return OffsetChange(
            key=self.key(name), table=name, topic=plan.topic, previous=previous, offset=offset, note=note
        )

    def _import(
        self,
        name: str,
        offsets: Sequence[ConnectOffset],
        previous: StoredOffset | None,
        edit: Edit,
        *,
        by_cursor: bool,
    ) -> OffsetChange:
        plan = self.plans[name]
        connect_offset = find_offset(offsets, self._connect_table(name))
        if connect_offset is not None and connect_offset.problem is not None:
            raise ConfigError(f"table {name}: Kafka Connect's offset can't be used: {connect_offset.problem}")
        cursor = connect_offset.cursor if connect_offset is not None else None
        is_empty = not length(self._kafka, plan.topic)
        compare = _is_comparable(plan) and not by_cursor and (cursor is None or not is_empty)
        present = None if compare else self._present_offset(plan)
        topic = self._topics.get(plan.topic)
        offset = imported_offset(plan, cursor, topic=topic, edit=edit, compare=compare, present=present)
        note = _import_note(cursor, compare=compare, empty_topic=plan.topic if is_empty else None)
        return OffsetChange(
            key=self.key(name), table=name, topic=plan.topic, previous=previous, offset=offset, note=note
        )

    def _preview(self, change: OffsetChange) -> Preview:
        """Count the effect, unless a forgotten table does not exist."""
        try:
            plan = self.plans.get(change.table)
        except ConfigError:
            if change.offset is not None:
                raise
            plan = None
        is_compared = change.offset is not None and change.offset.phase is Phase.COMPARING
        if plan is None or plan.reading is Reading.WHOLE or is_compared:
            return Preview(change=change)
        previous = change.previous.offset if change.previous is not None else None
        due, rows = self.count(change.table, previous), self.count(change.table, change.offset)
        return Preview(change=change, due=due, rows=rows)


def _was_polled(stored: StoredOffset | None) -> bool:
    """Return True if a source has published from this offset. An import before its first run may be repeated."""
    if stored is None or stored.value is None:
        return False
    offset = stored.offset
    return offset is None or offset.phase not in {Phase.COMPARING, Phase.REWINDING} or bool(offset.partial_polls)


def _is_comparable(plan: TablePlan) -> bool:
    """Return True if the topic's newest record of a key tells how the row was sent."""
    has_one_record = plan.rows.key_columns and not plan.keyless and len(plan.rows.topics) == 1
    return bool(has_one_record) and plan.reading is Reading.VERSIONS


def _import_note(cursor: Cursor | None, *, compare: bool, empty_topic: str | None) -> str:
    if compare:
        prefix = "" if cursor is not None else "no offset of Kafka Connect's; "
        return f"{prefix}every row is compared with the topic, and what the topic lacks is sent; see compactory verify"
    if cursor is None:
        return "no offset of Kafka Connect's: every row is sent"
    if empty_topic is not None:
        return (
            f"topic {empty_topic!r} has no records to compare with: only rows after Kafka Connect's offset are sent. If"
            " the topic should hold the earlier ones, check topic.prefix, or run without an import"
        )
    return "rows after Kafka Connect's offset are sent; rows that committed late before the move stay lost"

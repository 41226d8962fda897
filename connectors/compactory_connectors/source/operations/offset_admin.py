"""One connector's tables beside their stored offsets: for a person who reads or edits them.

Edits are decided twice: for the person to see, and once more when earlier sources are fenced and nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from psycopg import sql

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import length

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Cursor, Edit, Phase
from ..offsets.stored_offsets import StoredOffset, matching, read_offsets
from ..planning.planner import plan_tables
from ..planning.row_order import parse_timestamp, row_timestamp
from ..planning.table_plan import Reading, TablePlan
from ..polling.readers import open_reader
from ..polling.table import TableReader
from ..postgres.server import Server, connected, statement
from .connect_offsets import ConnectOffset, find_offset
from .offset_edit import Change, Decide, edit_offsets, imported, moved, refuse_running
from .pending import Difference, difference

__all__ = ["OffsetAdmin", "Place", "Preview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where somebody wants to go on from: a cursor, a row's id, or a time in microseconds since 1970."""

    cursor: Cursor = field(default_factory=Cursor)
    to_id: int | None = None
    to_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """An edit before it is written. A poll would send ``due`` rows without it and ``rows`` rows after it."""

    change: Change
    due: int | None = None
    rows: int | None = None
    difference: Difference | None = None


class OffsetAdmin:
    """Owned by one thread; closes its connection when :meth:`open` ends. Raises the errors of a session."""

    def __init__(self, connector: ConnectorConfig, kafka: Kafka, server: Server | None) -> None:
        self._connector = connector
        self._kafka = kafka
        self._connected = server

    @classmethod
    @contextmanager
    def open(cls, connector: ConnectorConfig, kafka: Kafka, *, alone: bool = False) -> Iterator[OffsetAdmin]:
        """Connect to Postgres; with ``alone`` do without it where it does not answer.

        Raises ConfigError and Unreachable.
        """
        with ExitStack() as stack:
            server: Server | None = None
            try:
                server = stack.enter_context(connected(connector.connection))
            except Unreachable:
                if not alone:
                    raise
            yield cls(connector, kafka, server)

    @cached_property
    def plans(self) -> dict[str, TablePlan]:
        """The connector's tables, by ``db.schema.table``. Raises ConfigError with all problems."""
        plans = plan_tables(self._server, self._connector)
        return {plan.full_name(self._server.database): plan for plan in plans}

    def stored(self) -> dict[bytes, StoredOffset]:
        """The connector's offsets, by the keys of their records."""
        return {item.key: item for item in read_offsets(self._kafka) if item.connector == self._connector.name}

    def key(self, table: str) -> bytes:
        """The key of a table's offset."""
        return self.plans[table].offset_key(self._server.database)

    def count(self, table: str, offset: SourceOffset | None) -> int:
        """Rows that a poll from this offset would take now."""
        return open_reader(self._server, self.plans[table], offset).count()

    def resets(self, names: Sequence[str]) -> Decide:
        """Decides on forgetting the offsets of these tables, whether or not they still exist."""

        def decide(stored: Sequence[StoredOffset]) -> list[Change]:
            known = {item.table: item for item in stored if item.value is not None}
            chosen = [known[name] for name in (matching(list(known), names) if known else ())]
            return [Change(key=item.key, table=item.table, topic=None, before=item, after=None) for item in chosen]

        return decide

    def settings(self, names: Sequence[str], place: Place, edit: Edit, *, skip: bool) -> Decide:
        """Decides on setting these tables to a place. Raises ConfigError for a row or column that is not there."""
        cursors = {name: self._cursor(self.plans[name], place) for name in matching(list(self.plans), names)}

        def decide(stored: Sequence[StoredOffset]) -> list[Change]:
            known = {item.key: item for item in stored}
            return [self._moved(name, cursor, known, edit, skip=skip) for name, cursor in cursors.items()]

        return decide

    def imports(self, names: Sequence[str], offsets: Sequence[ConnectOffset], edit: Edit, *, by_cursor: bool) -> Decide:
        """Decides on going on from Kafka Connect's offsets. Raises ConfigError for tables that were polled already."""
        chosen = [name for name in matching(list(self.plans), names) if self.plans[name].reading is not Reading.WHOLE]
        if not chosen:
            raise ConfigError("mode bulk sends every table whole at each poll: there is no offset to import")

        def decide(stored: Sequence[StoredOffset]) -> list[Change]:
            known = {item.key: item for item in stored}
            polled = [name for name in chosen if _polled(known.get(self.key(name)))]
            if polled:
                raise ConfigError(
                    f"table {name} has an offset of this connector already, newer than Kafka Connect's; forget it"
                    f" first: compactory source offsets reset --table {name}"
                    for name in polled
                )
            return [self._imported(name, offsets, known, edit, by_cursor=by_cursor) for name in chosen]

        return decide

    def left(self, offsets: Sequence[ConnectOffset]) -> list[str]:
        """Tables that Kafka Connect has offsets of and this connector does not read."""
        used = {found.key for name in self.plans if (found := find_offset(offsets, self._place_of(name))) is not None}
        return [item.table or "query" for item in offsets if item.key not in used and item.cursor is not None]

    def preview(self, decide: Decide) -> list[Preview]:
        """The effect of the edit now, counted; nothing is written."""
        return [self._preview(change) for change in decide(list(self.stored().values()))]

    def write(self, decide: Decide, edit: Edit, *, force: bool) -> list[Change]:
        """Edit. Raises LeaseLost while a source of the connector runs; with ``force`` it is fenced."""

        def check() -> None:
            if self._connected is not None:
                refuse_running(self._connector, self._connected, force=force)

        check()
        return edit_offsets(self._connector, self._kafka, decide, edit, check)

    def difference(self, table: str) -> Difference:
        """Compare a table with its topic, row by row."""
        return difference(self._server, self._kafka, self.plans[table], self._connector.max_removed_percent)

    @property
    def _server(self) -> Server:
        assert self._connected is not None
        return self._connected

    def _now(self, plan: TablePlan) -> SourceOffset | None:
        reader = open_reader(self._server, plan, None)
        return reader.as_of_now() if isinstance(reader, TableReader) and plan.reading is Reading.VERSIONS else None

    def _place_of(self, name: str) -> tuple[str, str, str] | None:
        plan = self.plans[name]
        return None if plan.connector.query is not None else (self._server.database, plan.schema, plan.name)

    @cached_property
    def _topics(self) -> Mapping[str, tuple[str, str | None]]:
        found = self._kafka.topics({plan.topic for plan in self.plans.values()})
        return {name: (name, topic.topic_id) for name, topic in found.items()}

    def _moved(
        self, name: str, cursor: Cursor, known: Mapping[bytes, StoredOffset], edit: Edit, *, skip: bool
    ) -> Change:
        plan, before = self.plans[name], known.get(self.key(name))
        if before is not None and before.problem is not None and not skip:
            raise ConfigError(f"table {name}: its offset can't be read ({before.problem}); reset it first")
        offset = before.offset if before is not None else None
        now = self._now(plan) if offset is None or skip else None
        after = moved(plan, offset, cursor, topic=self._topics.get(plan.topic), edit=edit, now=now, skip=skip)
        note = ""
        if plan.reading is not Reading.CURSOR and (offset is None or skip):
            note = "rows up to there are never sent, unless they change"
        elif after.phase is not Phase.REWINDING and plan.reading is Reading.VERSIONS:
            note = "the first load is not finished: every row is sent anyway"
        return Change(key=self.key(name), table=name, topic=plan.topic, before=before, after=after, note=note)

    def _imported(
        self,
        name: str,
        offsets: Sequence[ConnectOffset],
        known: Mapping[bytes, StoredOffset],
        edit: Edit,
        *,
        by_cursor: bool,
    ) -> Change:
        plan = self.plans[name]
        found = find_offset(offsets, self._place_of(name))
        if found is not None and found.problem is not None:
            raise ConfigError(f"table {name}: Kafka Connect's offset can't be used: {found.problem}")
        cursor = found.cursor if found is not None else None
        empty = not length(self._kafka, plan.topic)
        compare = _comparable(plan) and not by_cursor and (cursor is None or not empty)
        now = None if compare else self._now(plan)
        after = imported(plan, cursor, topic=self._topics.get(plan.topic), edit=edit, compare=compare, now=now)
        return Change(
            key=self.key(name),
            table=name,
            topic=plan.topic,
            before=known.get(self.key(name)),
            after=after,
            note=_note(cursor, compare=compare, empty=plan.topic if empty else None),
        )

    def _preview(self, change: Change) -> Preview:
        """Counted, unless the table is only forgotten and gone, or Postgres does not answer."""
        if change.after is not None and change.after.phase is Phase.COMPARING:
            return Preview(change=change, difference=self.difference(change.table))
        try:
            plan = self.plans.get(change.table) if self._connected is not None else None
        except ConfigError:
            if change.after is not None:
                raise
            plan = None
        if plan is None or plan.reading is Reading.WHOLE:
            return Preview(change=change)
        before = change.before.offset if change.before is not None else None
        return Preview(change=change, due=self.count(change.table, before), rows=self.count(change.table, change.after))

    def _cursor(self, plan: TablePlan, place: Place) -> Cursor:
        if place.to_id is not None:
            return self._before_row(plan, place.to_id)
        if place.to_time is not None:
            # Without an id the condition is "later than", so one microsecond earlier is the place before that time.
            return Cursor.from_micros(place.to_time if plan.incrementing else place.to_time - 1)
        return place.cursor

    def _before_row(self, plan: TablePlan, number: int) -> Cursor:
        """The place just before the row with this id."""
        if not plan.incrementing:
            remedy = "; give --to-time" if plan.timestamps else ""
            raise ConfigError(f"{plan.label}: its mode has no incrementing column{remedy}")
        if not plan.timestamps:
            return Cursor(incrementing=number - 1)
        moment = row_timestamp(plan)
        assert moment is not None
        query = statement(
            "source/timestamp_of",
            timestamp=moment,
            relation=plan.relation(),
            incrementing=sql.Identifier("t", plan.incrementing),
            number=sql.Literal(number),
        )
        found = self._server.scalar(query)
        if found is None:
            raise ConfigError(
                f"{plan.label}: no row has {plan.incrementing} {number} and a timestamp; give --to-time, or"
                " the id of a row that is there"
            )
        milliseconds, nanos = parse_timestamp(str(found), plan.connector.columns.zone)
        return Cursor(timestamp=milliseconds, timestamp_nanos=nanos, incrementing=number - 1)


def _polled(stored: StoredOffset | None) -> bool:
    """Whether a source has published from this offset; an import that waits for its first run may be repeated."""
    if stored is None or stored.value is None:
        return False
    offset = stored.offset
    return offset is None or offset.phase not in {Phase.COMPARING, Phase.REWINDING} or bool(offset.partial_polls)


def _comparable(plan: TablePlan) -> bool:
    """Whether the topic's newest record of a key tells how the row was sent."""
    if not plan.rows.key_columns or plan.keyless or len(plan.rows.topics) > 1:
        return False
    return plan.reading is Reading.VERSIONS


def _note(cursor: Cursor | None, *, compare: bool, empty: str | None) -> str:
    if compare:
        known = "" if cursor is not None else "no offset of Kafka Connect's; "
        return f"{known}every row is compared with the topic, and what the topic lacks is sent"
    if cursor is None:
        return "no offset of Kafka Connect's: every row is sent"
    if empty is not None:
        return (
            f"topic {empty!r} has no records to compare with: only rows after Kafka Connect's offset are sent. If the"
            " topic should hold the earlier ones, check topic.prefix, or run without an import"
        )
    return "rows after Kafka Connect's offset are sent; rows that committed late before the move stay lost"

"""A table's offset after a set, reset or import, and the transaction that writes it.

An edit loses nothing that was committed: rows that the last poll has not seen stay due, whatever the offset is set to.
The lock that a running source shares in its database shows it, and the edit is
refused. An edit is written under the connector's transactional id: a source that was not seen, because it waits for
Postgres, is fenced and reads the edited offset when it comes back.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from compactory.errors import ConfigError, LeaseLost
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.producer_record import Headers

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import NOWHERE, Cursor, Edit, Phase
from ..offsets.stored_offsets import StoredOffset, read_offsets
from ..offsets.topics import ensure_topics, publisher_of
from ..planning.table_plan import Reading, TablePlan
from ..postgres.server import Server

__all__ = ["Decide", "OffsetChange", "edit_offsets", "imported_offset", "moved_offset", "new_edit", "refuse_running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """An edit of one table's offset; None forgets it. ``note`` names the consequence."""

    key: bytes
    table: str
    topic: str | None
    previous: StoredOffset | None
    offset: SourceOffset | None
    note: str = ""


Decide: TypeAlias = Callable[[Sequence[StoredOffset]], Sequence[OffsetChange]]
"""Takes the connector's stored offsets, and returns the changes to write."""


def new_edit(description: str) -> Edit:
    """Return an edit that the user of this process makes now."""
    try:
        user = f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user id without a name, as in a container
        user = socket.gethostname()
    return Edit(by=user, at=datetime.now(UTC).isoformat(timespec="seconds"), command=description)


def refuse_running(connector: ConnectorConfig, server: Server, *, force: bool) -> None:
    """Raise LeaseLost while a source of the connector runs; with ``force`` only if it could not be fenced."""
    running = server.running_sources(connector.name)
    if not running or (force and connector.transactions):
        return
    reason = "" if connector.transactions else " (compactory.transactions=off: it can't be fenced)"
    remedy = "stop it first" if force or reason else "stop it first, or edit them with --force: it goes on from there"
    raise LeaseLost(f"a source of {connector.name!r} is running{reason}: {'; '.join(running)}; {remedy}")


def edit_offsets(
    connector: ConnectorConfig, kafka: Kafka, decide: Decide, edit: Edit, check: Callable[[], None]
) -> list[OffsetChange]:
    """Write the changes that ``decide`` returns, all in one transaction; return them.

    Earlier holders of the transactional id are fenced first, so that no offset moves; then ``check`` is called. Nothing
    is written when this raises LeaseLost (another process took over meanwhile), Unreachable or ConfigError.
    """
    ensure_topics(kafka, {}, create=True)
    with closing(publisher_of(connector, kafka)) as publisher:
        publisher.open()
        changes = list(decide([stored for stored in read_offsets(kafka) if stored.connector == connector.name]))
        check()
        if changes:
            publisher.amend([_record(change, edit) for change in changes])
    return changes


def _record(change: OffsetChange, edit: Edit) -> tuple[bytes, bytes | None, Headers]:
    headers = [("edited_by", edit.by), ("edited_at", edit.at), ("edited", edit.command)]
    value = change.offset.dumps() if change.offset is not None else None
    return change.key, value, [(name, text.encode()) for name, text in headers]


def _cursor_problem(plan: TablePlan, cursor: Cursor) -> str | None:
    """Return why the offset of this table can't be set to the cursor, or None."""
    if plan.reading is Reading.WHOLE:
        return f"{plan.label}: mode bulk sends all of it at each poll and has no offset to set"
    if cursor.timestamp is not None and not plan.timestamps:
        return f"{plan.label}: its mode has no timestamp; give --incrementing"
    if cursor.incrementing is not None and not plan.incrementing:
        return f"{plan.label}: its mode has no incrementing column; give --timestamp or --to-time"
    if cursor.timestamp is None and plan.timestamps:
        return f"{plan.label}: rows are ordered by timestamp and id; give --timestamp too, or --to-time"
    return None


def moved_offset(
    plan: TablePlan,
    previous: SourceOffset | None,
    cursor: Cursor,
    *,
    topic: tuple[str, str | None] | None,
    edit: Edit,
    present: SourceOffset | None = None,
) -> SourceOffset:
    """Return the offset from which the next poll sends the rows after ``cursor``.

    Without a previous offset, rows up to the cursor are never sent, unless they commit after ``present``: the offset of
    a table of which everything was polled now, which tables with row versions have. Raises ConfigError for a cursor
    that does not fit the mode.
    """
    if (problem := _cursor_problem(plan, cursor)) is not None:
        raise ConfigError(problem)
    base = (previous or SourceOffset(identity=NOWHERE, topic=topic)).with_cursor(cursor)
    base = replace(base, partial_polls=(), edited=edit)
    if plan.reading is Reading.CURSOR:
        return base.completed(base.seen_snapshot)
    if previous is None:
        start = present or replace(base.completed(), durable=None, sweep=False)
        return replace(start.rewound_to(cursor).with_cursor(cursor), topic=base.topic, edited=edit)
    if previous.seen_snapshot is None and previous.phase is not Phase.REWINDING:
        return base  # a first load that is not finished: every row is due anyway
    return base.rewound_to(cursor)


def imported_offset(
    plan: TablePlan,
    cursor: Cursor | None,
    *,
    topic: tuple[str, str | None] | None,
    edit: Edit,
    compare: bool,
    present: SourceOffset | None = None,
) -> SourceOffset | None:
    """Return the offset that goes on where Kafka Connect stopped; None if it never began: every row is sent.

    With ``compare`` every row is read and those that the topic lacks are sent; otherwise those after the cursor.
    """
    if compare:
        base = SourceOffset(identity=NOWHERE, topic=topic, phase=Phase.COMPARING, sweep=plan.sweeps, edited=edit)
        return base.with_cursor(cursor or Cursor())
    if cursor is None:
        return None
    if not plan.timestamps:
        cursor = Cursor(incrementing=cursor.incrementing)
    elif not plan.incrementing:
        cursor = replace(cursor, incrementing=None)
    if cursor.is_empty or _cursor_problem(plan, cursor) is not None:
        return None  # as after a change of the mode
    return moved_offset(plan, None, cursor, topic=topic, edit=edit, present=present)

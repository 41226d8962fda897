"""A table's offset after a set, reset or import, and the transaction that writes it.

Nothing that was committed gets lost by an edit: rows that the last poll has not seen stay due, wherever the offset is
set to; only ``skip`` gives them up. The lock that a running source shares in its database shows it, and the edit is
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
from ..offsets.offset_parts import Cursor, Edit, Identity, Phase
from ..offsets.stored_offsets import StoredOffset, read_offsets
from ..offsets.topics import ensure_topics, publisher_of
from ..planning.table_plan import Reading, TablePlan
from ..postgres.server import Server

__all__ = ["Change", "Decide", "edit_offsets", "imported", "moved", "refusal", "refuse_running", "signed"]

_NOWHERE = Identity(system_identifier="", timeline=0, postmaster_start="", statistics_start="", table_oid=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One table's edit. ``after`` None: forgotten. ``note`` names the consequence."""

    key: bytes
    table: str
    topic: str | None
    before: StoredOffset | None
    after: SourceOffset | None
    note: str = ""


Decide: TypeAlias = Callable[[Sequence[StoredOffset]], Sequence[Change]]
"""The connector's offsets as they are → the changes to write."""


def signed(what: str) -> Edit:
    """An edit of now by the user of this process."""
    try:
        who = f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user id without a name, as in a container
        who = socket.gethostname()
    return Edit(by=who, at=datetime.now(UTC).isoformat(timespec="seconds"), what=what)


def refuse_running(connector: ConnectorConfig, server: Server, *, force: bool) -> None:
    """Raise LeaseLost while a source of the connector runs; with ``force`` only where it could not be fenced."""
    found = server.running_sources(connector.name)
    if not found or (force and connector.transactions):
        return
    why = "" if connector.transactions else " (compactory.transactions=off: it can't be fenced)"
    remedy = "stop it first" if force or why else "stop it first, or edit them with --force: it goes on from there"
    raise LeaseLost(f"a source of {connector.name!r} is running{why}: {'; '.join(found)}; {remedy}")


def edit_offsets(
    connector: ConnectorConfig, kafka: Kafka, decide: Decide, edit: Edit, check: Callable[[], None]
) -> list[Change]:
    """Write the changes on which ``decide`` decides, all in one transaction; return them.

    Earlier holders of the transactional id are fenced first, so that what is read stays as it is; ``check`` has the
    last word. Nothing is written when it raises LeaseLost (somebody took over meanwhile), Unreachable or ConfigError.
    """
    ensure_topics(kafka, {}, create=True)
    with closing(publisher_of(connector, kafka)) as publisher:
        publisher.open()
        changes = list(decide([stored for stored in read_offsets(kafka) if stored.connector == connector.name]))
        check()
        if changes:
            publisher.amend([_record(change, edit) for change in changes])
    return changes


def _record(change: Change, edit: Edit) -> tuple[bytes, bytes | None, Headers]:
    headers = [("edited_by", edit.by), ("edited_at", edit.at), ("edited", edit.what)]
    value = change.after.dumps() if change.after is not None else None
    return change.key, value, [(name, text.encode()) for name, text in headers]


def refusal(plan: TablePlan, cursor: Cursor) -> str | None:
    """Why the place can't be set on this table, or None."""
    if plan.reading is Reading.WHOLE:
        return f"{plan.label}: mode bulk sends all of it at each poll and has no offset to set"
    if cursor.timestamp is not None and not plan.timestamps:
        return f"{plan.label}: its mode has no timestamp; give --incrementing or --to-id"
    if cursor.incrementing is not None and not plan.incrementing:
        return f"{plan.label}: its mode has no incrementing column; give --timestamp or --to-time"
    if cursor.timestamp is None and plan.timestamps:
        return (
            f"{plan.label}: an id alone is not a place in the order of timestamp and id; give --timestamp too,"
            " or --to-id, which looks the timestamp up"
        )
    return None


def moved(
    plan: TablePlan,
    before: SourceOffset | None,
    cursor: Cursor,
    *,
    topic: tuple[str, str | None] | None,
    edit: Edit,
    now: SourceOffset | None = None,
    skip: bool = False,
) -> SourceOffset:
    """The offset from which the next poll sends the rows beyond ``cursor``. Raises ConfigError; see :func:`refusal`.

    Without an offset before, or with ``skip``, rows up to the cursor are never sent, unless they commit after ``now``:
    an offset as of this moment, which tables with row versions have.
    """
    if (problem := refusal(plan, cursor)) is not None:
        raise ConfigError(problem)
    base = (before or SourceOffset(identity=_NOWHERE, topic=topic)).with_cursor(cursor)
    base = replace(base, partial_polls=(), edited=edit)
    if plan.reading is Reading.CURSOR:
        return base.completed(base.seen_snapshot)
    if before is None or skip:
        start = now or replace(base.completed(), durable=None, sweep=False)
        return replace(start.rewound_to(cursor).with_cursor(cursor), topic=base.topic, edited=edit)
    if before.seen_snapshot is None and before.phase is not Phase.REWINDING:
        return base  # a first load that is not finished: every row is due anyway
    return base.rewound_to(cursor)


def imported(
    plan: TablePlan,
    cursor: Cursor | None,
    *,
    topic: tuple[str, str | None] | None,
    edit: Edit,
    compare: bool,
    now: SourceOffset | None = None,
) -> SourceOffset | None:
    """The offset that goes on where Kafka Connect stopped; None: it never began, and every row is sent.

    With ``compare`` every row is read and those that the topic lacks are sent; otherwise those beyond the cursor.
    """
    if compare:
        base = SourceOffset(identity=_NOWHERE, topic=topic, phase=Phase.COMPARING, sweep=plan.sweeps, edited=edit)
        return base.with_cursor(cursor or Cursor())
    used = _used(plan, cursor)
    return moved(plan, None, used, topic=topic, edit=edit, now=now) if used is not None else None


def _used(plan: TablePlan, cursor: Cursor | None) -> Cursor | None:
    """Kafka Connect's place as this mode uses it; None where it would begin anew, as after a change of mode."""
    if cursor is None:
        return None
    if not plan.timestamps:
        used = Cursor(incrementing=cursor.incrementing)
    else:
        used = cursor if plan.incrementing else replace(cursor, incrementing=None)
    return used if refusal(plan, used) is None and not used.is_empty else None

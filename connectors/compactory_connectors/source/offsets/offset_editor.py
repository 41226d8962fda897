"""Edits the offsets of a connector without a running source noticing too late.

A source that runs is found by the lock that it shares in its database, and the edit is refused. What is written is
written under the connector's transactional id: a source that was not found, because it waits for Postgres, is fenced
and reads the edited offset when it comes back.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime

from compactory.errors import LeaseLost
from compactory.kafka.client import Kafka
from compactory_connectors.database.postgres_errors import postgres_errors

from ..config.connector import ConnectorConfig
from ..cursor.offset import Edit
from ..plan.row_function import Headers
from ..postgres.server import Server
from ..publish.publisher import Publisher
from ..publish.stored_offsets import StoredOffset, read_offsets
from ..publish.topics import ensure
from .offset_edit import Change

__all__ = ["Decide", "edit_offsets", "refuse_running", "signed"]

Decide = Callable[[Sequence[StoredOffset]], Sequence[Change]]
"""The connector's offsets as they are → what to write."""


def signed(what: str) -> Edit:
    """An edit of now by who runs this process."""
    try:
        who = f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user id without a name, as in a container
        who = socket.gethostname()
    return Edit(by=who, at=datetime.now(UTC).isoformat(timespec="seconds"), what=what)


def refuse_running(connector: ConnectorConfig, server: Server, *, force: bool) -> None:
    """Raise LeaseLost while a source of the connector runs; with ``force`` only where it could not be fenced."""
    with postgres_errors(connector.connection):
        found = server.running(connector.name)
    if not found or (force and connector.transactions):
        return
    remedy = "stop it first" if force else "stop it first, or edit them with --force: it goes on from there"
    why = " (compactory.transactions=off: it can't be fenced)" if not connector.transactions else ""
    if why:
        remedy = "stop it first"
    raise LeaseLost(f"a source of {connector.name!r} is running{why}: {'; '.join(found)}; {remedy}")


def edit_offsets(
    connector: ConnectorConfig, kafka: Kafka, decide: Decide, edit: Edit, check: Callable[[], None]
) -> list[Change]:
    """Write what ``decide`` makes of the connector's offsets, all in one transaction; return what was written.

    Earlier holders of the transactional id are fenced first, so that what is read stays as it is; ``check`` has the
    last word. Nothing is written when it raises LeaseLost (somebody took over meanwhile), Unreachable or ConfigError.
    """
    ensure(kafka, {}, create=True)
    with closing(Publisher.of(connector, kafka)) as publisher:
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

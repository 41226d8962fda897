"""Operators' commands about messages that Kafka refused: list, send again, drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory.errors import CompactoryError
from compactory_sql import query

__all__ = ["FailedMessage", "drop", "failed_messages", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """A message that was set aside.

    ``reason`` None: it waits for an earlier one of its key. ``bytes`` is the payload's size; None: a tombstone.
    """

    id: int
    topic: str
    key: bytes | None
    bytes: int | None
    created_at: datetime
    failed_at: datetime
    reason: str | None
    holds_key: bool


def failed_messages(
    connection: psycopg.Connection[Any], topic: str | None = None, ids: Sequence[int] = (), limit: int = 1000
) -> list[FailedMessage]:
    """Return failed messages: of a topic, with these ids, or all, oldest first. Raises psycopg.Error."""
    given = {"topic": topic, "ids": list(ids) or None, "limit": limit}
    return connection.cursor(row_factory=class_row(FailedMessage)).execute(query("outbox/failed"), given).fetchall()


def retry(connection: psycopg.Connection[Any], topic: str | None = None, ids: Sequence[int] = ()) -> int:
    """Have failed messages sent again, then those that wait behind them; return how many.

    Raises CompactoryError for ids that have not failed, before anything is changed; psycopg.Error.
    """
    return sum(
        _put_back(connection, topic, "outbox/put_back", ids)
        for topic, ids in _chosen(connection, topic, ids, waiting=False)
    )


def drop(connection: psycopg.Connection[Any], topic: str | None = None, ids: Sequence[int] = ()) -> int:
    """Delete failed messages; those that wait behind them are sent. Return their number. Raises like `retry`.

    Where a ``topic`` is named that Kafka does not have, all of its messages are deleted.
    """
    chosen = _chosen(connection, topic, ids, waiting=bool(ids))
    for name, numbers in chosen:
        _put_back(connection, name, "outbox/drop", numbers)
    unsent = _drop_unsent(connection, topic) if topic is not None and not ids else 0
    return sum(len(numbers) for _, numbers in chosen) + unsent


def _drop_unsent(connection: psycopg.Connection[Any], topic: str) -> int:
    """Delete the messages that wait for a topic that Kafka does not have; return their number."""
    with connection.transaction():
        connection.execute(query("outbox/lock_topic"), {"topic": topic, "holder": None})
        return connection.execute(query("outbox/drop_unsent"), {"topic": topic}).rowcount


def _chosen(
    connection: psycopg.Connection[Any], topic: str | None, ids: Sequence[int], *, waiting: bool
) -> list[tuple[str, list[int]]]:
    given = {"topic": topic, "ids": list(ids) or None, "waiting": waiting}
    found = [(row[0], row[1]) for row in connection.execute(query("outbox/chosen"), given)]
    unknown = set(ids).difference(*(numbers for _, numbers in found))
    if unknown:
        raise CompactoryError(
            f"no message has failed with id {', '.join(map(str, sorted(unknown)))}, or it waits for another one;"
            " nothing was changed: compactory outbox failed lists them"
        )
    return found


def _put_back(connection: psycopg.Connection[Any], topic: str, first: str, ids: list[int]) -> int:
    """Put messages of one topic back, in a transaction; ``first`` names the statement for the messages themselves."""
    given = {"topic": topic, "ids": ids, "holder": None}
    with connection.transaction():
        connection.execute(query("outbox/lock_topic"), given)
        cursor = connection.execute(query(first), given)
        back = [row[0] for row in cursor] if cursor.description else []
        back += [row[0] for row in connection.execute(query("outbox/put_back_freed"), given)]
        if back:
            connection.execute(query("outbox/rewind"), given | {"first": min(back)})
    return len(back)

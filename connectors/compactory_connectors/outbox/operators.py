"""Operators' functions about the outbox: list, retry and drop messages that Kafka refused; pause and resume topics.

Each transaction writes a line of the operator log; ``by`` is who acts, by default the user of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory.errors import CompactoryError
from compactory_connectors.postgres.operator_log import log_act
from compactory_connectors.postgres.pausing import PauseResult, set_paused, unseen
from compactory_sql import query

__all__ = ["FailedMessage", "drop", "failed_messages", "pause", "resume", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """A failed message, or one that waits for a failed message of its key (``reason`` None).

    ``bytes`` is the size of the payload; None: a tombstone.
    """

    id: int
    topic: str
    key: bytes | None
    bytes: int | None
    created_at: datetime
    failed_at: datetime
    reason: str | None


def failed_messages(
    connection: psycopg.Connection[Any], topic: str | None = None, ids: Sequence[int] = (), limit: int = 1000
) -> list[FailedMessage]:
    """Return failed messages: of a topic, with these ids, or all, oldest first. Raises psycopg.Error."""
    parameters = {"topic": topic, "ids": list(ids) or None, "limit": limit}
    cursor = connection.cursor(row_factory=class_row(FailedMessage))
    return cursor.execute(query("outbox/failed"), parameters).fetchall()


def pause(connection: psycopg.Connection[Any], topic: str, *, by: str | None = None) -> PauseResult:
    """Pause a topic: relays begin no batch of it within a second. Messages stay, in order. Raises psycopg.Error."""
    warning = unseen("topic", topic, (row[0] for row in connection.execute(query("outbox/topics"), {"topic": topic})))
    return PauseResult(set_paused(connection, "outbox", topic, by, is_paused=True), warning)


def resume(connection: psycopg.Connection[Any], topic: str, *, by: str | None = None) -> bool:
    """Resume a topic. Return False if it was not paused. Raises psycopg.Error."""
    return set_paused(connection, "outbox", topic, by, is_paused=False)


def retry(
    connection: psycopg.Connection[Any], topic: str | None = None, ids: Sequence[int] = (), *, by: str | None = None
) -> int:
    """Send failed messages again, and then the messages that wait for them; return their number.

    Raises CompactoryError for ids that have not failed, before anything is changed; psycopg.Error.
    """
    return sum(
        _put_back(connection, name, "retry", numbers, by, names_ids=bool(ids))
        for name, numbers in _chosen(connection, topic, ids, waiting=False)
    )


def drop(
    connection: psycopg.Connection[Any], topic: str | None = None, ids: Sequence[int] = (), *, by: str | None = None
) -> int:
    """Delete failed messages, and send the messages that wait for them. Return their number. Raises as `retry` does.

    With a ``topic`` that Kafka does not have, and without ids, all of its messages are deleted.
    """
    chosen = _chosen(connection, topic, ids, waiting=bool(ids))
    for name, numbers in chosen:
        _put_back(connection, name, "drop", numbers, by, names_ids=bool(ids))
    unsent = _drop_unsent(connection, topic, by) if topic is not None and not ids else 0
    return sum(len(numbers) for _, numbers in chosen) + unsent


def _drop_unsent(connection: psycopg.Connection[Any], topic: str, by: str | None) -> int:
    """Delete the messages that wait for a topic that Kafka does not have; return their number."""
    with connection.transaction():
        connection.execute(query("outbox/lock_topic"), {"topic": topic, "holder": None})
        count = connection.execute(query("outbox/drop_unsent"), {"topic": topic}).rowcount
        log_act(connection, "outbox", "drop", {"topic": topic}, count, by)
    return count


def _chosen(
    connection: psycopg.Connection[Any], topic: str | None, ids: Sequence[int], *, waiting: bool
) -> list[tuple[str, list[int]]]:
    parameters = {"topic": topic, "ids": list(ids) or None, "waiting": waiting}
    chosen = [(row[0], row[1]) for row in connection.execute(query("outbox/chosen"), parameters)]
    unknown = set(ids).difference(*(numbers for _, numbers in chosen))
    if unknown:
        raise CompactoryError(
            f"no message has failed with id {', '.join(map(str, sorted(unknown)))}, or it waits for another one;"
            " nothing was changed: compactory outbox failed lists them"
        )
    return chosen


def _put_back(
    connection: psycopg.Connection[Any], topic: str, act: str, ids: list[int], by: str | None, *, names_ids: bool
) -> int:
    """Retry or drop failed messages, put back the messages that waited; return the number put back.

    ``names_ids``: the operator has given the ids.
    """
    parameters = {"topic": topic, "ids": ids, "holder": None}
    with connection.transaction():
        connection.execute(query("outbox/lock_topic"), parameters)
        cursor = connection.execute(query("outbox/put_back" if act == "retry" else "outbox/drop"), parameters)
        put_back = [row[0] for row in cursor] if cursor.description else []
        put_back += [row[0] for row in connection.execute(query("outbox/put_back_freed"), parameters)]
        if put_back:
            connection.execute(query("outbox/rewind"), parameters | {"first": min(put_back)})
        count = len(put_back) if act == "retry" else cursor.rowcount
        log_act(connection, "outbox", act, {"topic": topic, "ids": ids if names_ids else None}, count, by)
    return len(put_back)

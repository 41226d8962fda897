"""The statements of a relay: locks of topics, batches, deletions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, TypeAlias

import psycopg

from compactory.errors import LeaseLost
from compactory_connectors.postgres.position import Position
from compactory_connectors.postgres.schema_part import Part, open_part, session_name
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .sent_ids import SentIds

__all__ = [
    "PAUSE",
    "TTL",
    "UNREAD",
    "Batch",
    "Claim",
    "LockedTopic",
    "OutboxTable",
    "PendingTopic",
    "Row",
    "open_outbox",
]

TTL: Final = 10.0
"""Seconds after which a lock that was not renewed may be taken over."""

PAUSE: Final = 60.0
"""Seconds for which a topic is not sent after an error of the topic."""

_INT4_MAX = 2**31 - 1

_OUTBOX = Part(name="outbox", needs="the outbox needs", installed="the outbox is", may="send the outbox")


Extras: TypeAlias = tuple[str | None, Mapping[str, Any] | None, bool]
"""Partition key, headers, and True if an earlier message of the key has failed."""

Row: TypeAlias = tuple[int, bytes | None, bytes | None, Extras | None]
"""A message: id, key, payload, and extras if it has any."""


@dataclass(frozen=True, slots=True)
class PendingTopic:
    """A topic with messages to send.

    ``lapsed``: the holder whose lock has expired; ``own``: this process was that holder. ``missing``: Kafka did not
    have the topic. ``alone``: the topic had an error, so it is sent without other topics. ``first``: the lowest id of
    its messages, if the whole table was read. ``has_news`` is set when more messages were published, for a sender that
    keeps the lock and waits.
    """

    name: str
    lapsed: str | None = None
    own: bool = False
    alone: bool = False
    missing: bool = False
    first: int | None = None
    has_news: threading.Event = field(default_factory=threading.Event, compare=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """The lock of a topic. ``rewinds`` counts how often messages were put back below ``position``."""

    topic: str
    position: Position
    rewinds: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in the order of their ids.

    ``running`` and ``newest``: the running transactions and the newest id when the batch was read. ``created``: when
    the first message was published. ``waiting``: ids of messages whose key waits for a failed message. ``full``: there
    may be more messages. ``moved``: the claim to read with again, because messages were put back.
    """

    rows: list[Row]
    running: tuple[int, ...] = ()
    newest: int = 0
    created: str = ""
    waiting: tuple[int, ...] = ()
    full: bool = True
    moved: Claim | None = None


UNREAD: Final = Batch([])
"""The batch of a topic whose next batch must be read."""


@dataclass(slots=True, eq=False)
class LockedTopic:
    """A topic whose lock a sender holds. Two of them are equal only if they are the same object.

    ``limit`` is the most messages of a batch, ``largest`` the size of the largest batch that was sent. ``batch`` was
    read and is not sent yet. ``sent_ids`` are in Kafka and not deleted yet.
    """

    pending: PendingTopic
    claim: Claim
    limit: int = 0
    batch: Batch = UNREAD
    sent_ids: Sequence[int] = ()
    largest: int = 0
    partitions: int = 0

    @property
    def name(self) -> str:
        return self.claim.topic

    @property
    def was_read_early(self) -> bool:
        """True if the batch is empty, or has messages that were sent since it was read."""
        return bool(self.sent_ids) and (not self.batch.rows or self.batch.rows[0][0] <= self.sent_ids[-1])


class OutboxTable:
    """The statements of one holder. Owned by one thread. Raises psycopg.Error, and LeaseLost if a lock was lost."""

    def __init__(self, connection: WatchedConnection, holder: str) -> None:
        self._connection = connection
        self._parameters: dict[str, Any] = {
            "holder": holder,
            "ttl": timedelta(seconds=TTL),
            "pause": timedelta(seconds=PAUSE),
        }

    def claim(self, pending: Sequence[PendingTopic], last_sent: Mapping[str, SentIds]) -> list[Claim]:
        """Lock topics, all of one lapsed holder or of none; return the locks that were granted.

        The caller has fenced the lapsed holder. The messages that it sent last are deleted in the same transaction,
        because later nobody can find out what it sent.
        """
        parameters = self._parameters | {
            "topics": [topic.name for topic in pending],
            "firsts": [topic.first for topic in pending],
            "lapsed": pending[0].lapsed,
            "own": pending[0].own,
        }
        with self._connection.transaction():
            rows = self._connection.execute(query("outbox/claim"), parameters).fetchall()
            for name, *_ in rows:
                if name in last_sent:
                    self._delete_sent(name, last_sent[name])
        return [Claim(name, Position.at(reached, newest), rewinds) for name, reached, rewinds, newest in rows]

    def read(self, locked: Sequence[LockedTopic], size: int) -> list[Batch]:
        """Delete sent messages, and return the next batch of each topic, in one round trip. ``size`` is in bytes."""
        with self._connection.pipeline():
            if any(topic.sent_ids for topic in locked):
                self._delete_and_renew(locked)
            cursor = self._select(locked, size)
        return _batches(locked, cursor.fetchall(), size)

    @contextmanager
    def sending(
        self, locked: Sequence[LockedTopic], read_ahead: Sequence[LockedTopic], size: int
    ) -> Iterator[Callable[[], dict[str, Batch]]]:
        """Start the work of Postgres that overlaps with sending; yield a function that waits for it.

        Postgres deletes the messages that were sent before and renews the locks. The flush of that commit also makes
        everything durable that was read. Then Postgres reads the next batches of ``read_ahead``: the function returns
        them by topic. The Kafka transaction must be committed after the call of the function.
        """
        with self._connection.pipeline() as pipeline:
            renewed = self._delete_and_renew(locked)
            cursor = self._select(read_ahead, size) if read_ahead else None

            def finish() -> dict[str, Batch]:
                pipeline.sync()
                _check_locks(locked, renewed)
                rows = cursor.fetchall() if cursor is not None else []
                batches = _batches(read_ahead, rows, size)
                return {topic.name: batch for topic, batch in zip(read_ahead, batches, strict=True)}

            yield finish

    def receive(self) -> None:
        """Receive what Postgres has sent so far: its buffers are smaller than a batch, and Postgres stops when full."""
        self._connection.pgconn.consume_input()

    def _delete_and_renew(self, locked: Sequence[LockedTopic]) -> psycopg.Cursor[Any]:
        """Delete sent messages and renew the locks in a transaction of its own: reading must not prolong row locks."""
        self._connection.execute("BEGIN")
        for topic in locked:
            self._delete(topic.name, topic.sent_ids)
        renewed = self._update(locked, "outbox/renew_topics")
        self._connection.execute("COMMIT")
        return renewed

    def _update(self, locked: Sequence[LockedTopic], statement: str) -> psycopg.Cursor[Any]:
        in_order = sorted(locked, key=lambda topic: topic.name)
        parameters = self._parameters | {
            "topics": [topic.name for topic in in_order],
            "rewinds": [topic.claim.rewinds for topic in in_order],
            "reached": [topic.claim.position.reached for topic in in_order],
        }
        return self._connection.execute(query(statement), parameters)

    def _select(self, locked: Sequence[LockedTopic], size: int) -> psycopg.Cursor[Any]:
        running = [(topic.name, str(xid), low) for topic in locked for xid, low in topic.claim.position.running.items()]
        parameters = self._parameters | {
            "topics": [topic.name for topic in locked],
            "rewinds": [topic.claim.rewinds for topic in locked],
            "starts": [topic.claim.position.start for topic in locked],
            "limits": [topic.limit for topic in locked],
            "of": [name for name, _, _ in running],
            "running": [xid for _, xid, _ in running],
            "lows": [low for _, _, low in running],
            "bytes": size,
        }
        return self._connection.cursor(binary=True).execute(query("outbox/read"), parameters)

    def release(self, locked: Sequence[LockedTopic]) -> None:
        with self._connection.transaction(), self._connection.pipeline() as pipeline:
            for topic in locked:
                self._delete(topic.name, topic.sent_ids)
            released = self._update(locked, "outbox/release")
            pipeline.sync()
            _check_locks(locked, released)

    def fail(self, topic: str, reason: str, sent_ids: Sequence[int], *, missing: bool) -> None:
        """Delete sent messages and release the lock after an error of the topic. ``missing``: Kafka lacks the topic."""
        with self._connection.transaction():
            self._delete(topic, sent_ids)
            self._connection.execute(
                query("outbox/fail"), self._parameters | {"topic": topic, "reason": reason, "missing": missing}
            )

    def end_session(self, holder: str) -> None:
        """End the Postgres session of a fenced holder, if it has the same role."""
        self._connection.execute(query("outbox/end_session"), {"name": session_name(_OUTBOX, holder)})

    def set_aside(self, topic: str, message: int, reason: str) -> None:
        """Move a message that Kafka refuses to the failed messages. Later messages of its key wait."""
        with self._connection.transaction():
            self._lock(topic)
            self._connection.execute(query("outbox/set_aside"), {"topic": topic, "id": message, "reason": reason})

    def hold_back(self, topic: str, messages: Sequence[int]) -> None:
        """Move messages whose key waits to the failed messages.

        The lock is a statement of its own, so that the second statement sees messages that an operator has put back.
        """
        with self._connection.transaction():
            self._lock(topic)
            self._connection.execute(query("outbox/hold_back"), {"topic": topic, "ids": list(messages)})

    def store_size_limits(self, sizes: Mapping[str, int]) -> None:
        """Store how many bytes a message of each topic may have, for publishers to check."""
        topics = sorted(sizes)
        parameters = {"topics": topics, "bytes": [min(sizes[topic], _INT4_MAX) for topic in topics]}
        self._connection.execute(query("outbox/set_max_bytes"), parameters)

    def _delete_sent(self, topic: str, sent: SentIds) -> None:
        """Delete the messages that a dead holder has sent and not deleted."""
        parameters = {
            "topic": topic,
            "ids": sent.ids,
            "first": sent.ids[0],
            "created": sent.created,
            "count": len(sent.ids),
        }
        self._connection.execute(query("outbox/delete_sent"), parameters)

    def _lock(self, topic: str) -> None:
        cursor = self._connection.execute(query("outbox/lock_topic"), self._parameters | {"topic": topic})
        if not cursor.rowcount:
            raise LeaseLost(f"another relay took over topic {topic!r}")

    def _delete(self, topic: str, ids: Sequence[int]) -> None:
        if ids:
            array = f"{{{str(list(ids))[1:-1]}}}"  # psycopg's own dumper takes ten times as long
            parameters = {"topic": topic, "ids": array, "first": ids[0], "last": ids[-1]}
            self._connection.execute(query("outbox/delete"), parameters)


def _check_locks(locked: Sequence[LockedTopic], updated: psycopg.Cursor[Any]) -> None:
    if updated.rowcount != len(locked):
        raise LeaseLost(f"another relay took over one of {len(locked)} topics such as {locked[0].name!r}")


def _batches(locked: Sequence[LockedTopic], rows: list[Any], size: int) -> list[Batch]:
    """Return the batch of each topic. The messages of a topic follow the row with its state, which has no id."""
    starts = [number for number, row in enumerate(rows) if row[0] is None]
    parts = [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
    rows_by_topic = {part[0][3]["topic"]: part for part in parts}
    return [_batch(topic, rows_by_topic.get(topic.name), size) for topic in locked]


def _batch(topic: LockedTopic, rows: list[Row] | None, size: int) -> Batch:
    if rows is None:
        raise LeaseLost(f"another relay took over topic {topic.name!r}")
    state: Any = rows.pop(0)[3]
    if state["rewinds"] != topic.claim.rewinds:
        position = Position.at(state["reached"], topic.claim.position.newest)
        return Batch([], moved=Claim(topic.name, position, state["rewinds"]))
    return Batch(
        rows,
        tuple(Snapshot.parse(state["snapshot"]).running(int(state["own"]))),
        state["newest"],
        state["created"] or "",
        tuple(row[0] for row in rows if row[3] is not None and row[3][2]),
        full=len(rows) == topic.limit or sum(len(row[2]) for row in rows if row[2] is not None) >= size,
    )


def open_outbox(conninfo: Mapping[str, Any], purpose: str) -> tuple[WatchedConnection, str]:
    """Return a connection in autocommit to a database with an outbox, and the database's identity; see `open_part`."""
    connection, server = open_part(conninfo, _OUTBOX, purpose)
    return connection, server["identity"]

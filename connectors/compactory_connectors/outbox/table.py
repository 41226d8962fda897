"""The outbox's tables as one thread of a relay uses them: locks of topics, batches, deletions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

import psycopg

from compactory.errors import LeaseLost
from compactory_connectors.database.installed import Part, open_part, session_name
from compactory_connectors.database.position import Position
from compactory_connectors.database.snapshot import Snapshot
from compactory_connectors.database.watched_connection import WatchedConnection
from compactory_sql import query

from .sent_ids import SentIds

__all__ = ["PAUSE", "TTL", "Batch", "Claim", "OutboxTable", "Pending", "Row", "open_outbox"]

TTL: Final = 10.0
"""Seconds without a heartbeat after which a topic may be taken over."""

_INT4 = 2**31 - 1

PAUSE: Final = 60.0
"""Seconds for which a topic is left alone after an error of its own."""

_OUTBOX = Part(name="outbox", needs="the outbox needs", installed="the outbox is", may="send the outbox")


More: TypeAlias = tuple[str | None, Mapping[str, Any] | None, bool]
"""Partition key, headers, and whether the key waits for a message that failed."""

Row: TypeAlias = tuple[int, bytes | None, bytes | None, More | None]
"""A message as it is read: id, key, payload; more where there is something to tell."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A topic with messages. ``lapsed``: the holder that did not renew its lock; ``own``: it was of this process.

    ``seen`` is set when messages were seen again, for a sender that waits for them with the lock.
    """

    topic: str
    lapsed: str | None = None
    own: bool = False
    seen: threading.Event = field(default_factory=threading.Event, compare=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """A topic's lock as long as it is held. ``rewinds`` tells that messages came back below ``position``."""

    topic: str
    position: Position
    rewinds: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in order of their ids, what ran when they were read, and the newest id then.

    ``created`` is when the first was published, ``waiting`` has ids of those whose key waits for one that failed.
    ``full``: there may be more. ``moved``: a claim to read again with, as messages came back.
    """

    rows: list[Row]
    running: tuple[int, ...] = ()
    newest: int = 0
    created: str = ""
    waiting: tuple[int, ...] = ()
    full: bool = True
    moved: Claim | None = None


class OutboxTable:
    """Statements of one holder. Owned by one thread. Raises psycopg.Error, and LeaseLost where a lock is another's."""

    def __init__(self, connection: WatchedConnection, holder: str) -> None:
        self._connection = connection
        self._given: dict[str, Any] = {
            "holder": holder,
            "ttl": timedelta(seconds=TTL),
            "pause": timedelta(seconds=PAUSE),
        }

    def claim(self, pending: Pending, last: SentIds | None = None) -> Claim | None:
        """Take the topic's lock; None where another was quicker. The lapsed holder must be fenced by then.

        What that one sent ``last`` is deleted in the same transaction: nobody looks for it under its name again.
        """
        given = self._given | {"topic": pending.topic, "lapsed": pending.lapsed, "own": pending.own}
        with self._connection.transaction():
            row = self._connection.execute(query("outbox/claim"), given).fetchone()
            if row is None:
                return None
            if last is not None:
                self._delete_sent(pending.topic, last)
        return Claim(pending.topic, Position.at(row[0], row[2]), row[1])

    def read(self, claim: Claim, done: Sequence[int], limit: int, size: int) -> Batch:
        """Delete what was sent, and read the next batch after that, in one round trip."""
        with self._connection.pipeline():
            if done:
                self._settle(claim, done)
            cursor = self._select(claim, limit, size)
        return _batch(claim, cursor.fetchall(), limit, size)

    @contextmanager
    def sending(
        self, claim: Claim, done: Sequence[int], ahead: Claim | None, limit: int, size: int
    ) -> Iterator[Callable[[], Batch | None]]:
        """What the server does while a batch is sent. The function waits for it; Kafka may have the batch afterwards.

        It deletes what was sent ``before`` and renews the lock; that commit is flushed, and with it all that was read.
        Then it reads the next batch, where ``ahead`` says from where. The function returns that.
        """
        with self._connection.pipeline() as pipeline:
            renewed = self._settle(claim, done)
            cursor = self._select(ahead, limit, size) if ahead is not None else None

            def finish() -> Batch | None:
                pipeline.sync()
                if not renewed.rowcount:
                    raise LeaseLost(f"another relay took over topic {claim.topic!r}")
                return _batch(ahead, cursor.fetchall(), limit, size) if ahead and cursor else None

            yield finish

    def receive(self) -> None:
        """Take in what the server has written so far, so that it goes on: its buffers hold less than a batch."""
        self._connection.pgconn.consume_input()

    def _settle(self, claim: Claim, done: Sequence[int]) -> psycopg.Cursor[Any]:
        """A transaction of its own within a pipeline: a lock on rows must not last while a batch is read."""
        self._connection.execute("BEGIN")
        self._delete(claim.topic, done)
        renewed = self._connection.execute(query("outbox/renew_topic"), self._reading(claim))
        self._connection.execute("COMMIT")
        return renewed

    def _select(self, claim: Claim, limit: int, size: int) -> psycopg.Cursor[Any]:
        given = self._reading(claim) | {"limit": limit, "bytes": size}
        return self._connection.cursor(binary=True).execute(query("outbox/read"), given)

    def release(self, claim: Claim, done: Sequence[int]) -> None:
        """Delete what was sent and give the lock back."""
        with self._connection.transaction():
            self._delete(claim.topic, done)
            released = self._connection.execute(query("outbox/release"), self._reading(claim))
            if not released.rowcount:
                raise LeaseLost(f"another relay took over topic {claim.topic!r}")

    def fail(self, topic: str, reason: str, done: Sequence[int]) -> None:
        """Delete what was sent and give the lock back after an error of the topic's."""
        with self._connection.transaction():
            self._delete(topic, done)
            self._connection.execute(query("outbox/fail"), self._given | {"topic": topic, "reason": reason})

    def end_session(self, holder: str) -> None:
        """End the session of a holder that is fenced, where it is of the same role."""
        self._connection.execute(query("outbox/end_session"), {"name": session_name(_OUTBOX, holder)})

    def set_aside(self, topic: str, message: int, reason: str, *, holds: bool) -> None:
        """Move a message that Kafka refuses out of the way; with ``holds`` later ones of its key wait."""
        with self._connection.transaction():
            self._lock(topic)
            given = {"topic": topic, "id": message, "reason": reason, "holds": holds}
            self._connection.execute(query("outbox/set_aside"), given)

    def hold_back(self, topic: str, messages: Sequence[int]) -> None:
        """Move messages out of the way whose key waits. Two statements: what was put back meanwhile must be seen."""
        with self._connection.transaction():
            self._lock(topic)
            self._connection.execute(query("outbox/hold_back"), {"topic": topic, "ids": list(messages)})

    def _delete_sent(self, topic: str, sent: SentIds) -> None:
        """Delete what a holder that died has sent, where it had no time to."""
        given = {
            "topic": topic,
            "ids": sent.ids,
            "first": sent.ids[0],
            "created": sent.created,
            "count": len(sent.ids),
        }
        self._connection.execute(query("outbox/delete_sent"), given)

    def tell_limits(self, sizes: Mapping[str, int]) -> None:
        """Keep how many bytes the broker takes in a message of these topics, for those who publish."""
        topics = sorted(sizes)
        given = {"topics": topics, "bytes": [min(sizes[topic], _INT4) for topic in topics]}
        self._connection.execute(query("outbox/limits"), given)

    def _lock(self, topic: str) -> None:
        found = self._connection.execute(query("outbox/topic"), self._given | {"topic": topic})
        if not found.rowcount:
            raise LeaseLost(f"another relay took over topic {topic!r}")

    def _delete(self, topic: str, ids: Sequence[int]) -> None:
        if ids:
            array = f"{{{str(list(ids))[1:-1]}}}"  # psycopg's own dumper takes ten times as long
            given = {"topic": topic, "ids": array, "first": ids[0], "last": ids[-1]}
            self._connection.execute(query("outbox/delete"), given)

    def _reading(self, claim: Claim) -> dict[str, Any]:
        position = claim.position
        return self._given | {
            "topic": claim.topic,
            "rewinds": claim.rewinds,
            "reached": position.reached,
            "start": position.start,
            "running": [str(xid) for xid in position.running],
            "lows": list(position.running.values()),
        }


def _batch(claim: Claim, rows: list[Row], limit: int, size: int) -> Batch:
    if not rows:
        raise LeaseLost(f"another relay took over topic {claim.topic!r}")
    facts: Any = rows.pop(0)[3]
    if facts["rewinds"] != claim.rewinds:
        again = Claim(claim.topic, Position.at(facts["reached"], claim.position.newest), facts["rewinds"])
        return Batch([], moved=again)
    return Batch(
        rows,
        tuple(Snapshot.parse(facts["snapshot"]).running(int(facts["own"]))),
        facts["newest"],
        facts["created"] or "",
        tuple(row[0] for row in rows if row[3] is not None and row[3][2]),
        full=len(rows) == limit or sum(len(row[2]) for row in rows if row[2] is not None) >= size,
    )


def open_outbox(conninfo: Mapping[str, Any], purpose: str) -> tuple[WatchedConnection, str]:
    """A connection in autocommit to a database with an outbox, and which database that is; see `open_part`."""
    connection, server = open_part(conninfo, _OUTBOX, purpose)
    return connection, server["identity"]

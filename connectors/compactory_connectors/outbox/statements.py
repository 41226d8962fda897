"""The outbox's tables as one thread of a relay uses them: locks of topics, batches, deletions."""

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

__all__ = ["PAUSE", "TTL", "UNREAD", "Batch", "Claim", "Held", "OutboxTable", "Pending", "Row", "open_outbox"]

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

    ``missing``: Kafka did not have it when it was last asked.
    ``alone``: it had an error, and is sent by itself, so that no other topic waits for the next one. ``first``: the
    lowest id that a look at everything found; ids may begin anew.
    ``seen`` is set when messages were seen again, for a sender that waits for them with the lock.
    """

    topic: str
    lapsed: str | None = None
    own: bool = False
    alone: bool = False
    missing: bool = False
    first: int | None = None
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


UNREAD: Final = Batch([])
"""Stands for a batch that is to be read."""


@dataclass(slots=True)
class Held:
    """A topic whose lock a sender holds: at most ``limit`` messages are read at once, ``largest`` were.

    ``batch`` was read and is not sent yet; ``done`` are messages that Kafka has, and that are not deleted yet.
    """

    pending: Pending
    claim: Claim
    limit: int = 0
    batch: Batch = UNREAD
    done: Sequence[int] = ()
    largest: int = 0
    partitions: int = 0

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.claim.topic

    @property
    def is_early(self) -> bool:
        """Whether the batch was read too early: it is empty, or has messages that were being sent then."""
        return bool(self.done) and (not self.batch.rows or self.batch.rows[0][0] <= self.done[-1])


class OutboxTable:
    """Statements of one holder. Owned by one thread. Raises psycopg.Error, and LeaseLost where a lock is another's."""

    def __init__(self, connection: WatchedConnection, holder: str) -> None:
        self._connection = connection
        self._given: dict[str, Any] = {
            "holder": holder,
            "ttl": timedelta(seconds=TTL),
            "pause": timedelta(seconds=PAUSE),
        }

    def claim(self, pending: Sequence[Pending], last: Mapping[str, SentIds]) -> list[Claim]:
        """Take the locks of topics with one lapsed holder, or none; those that others were not quicker to take.

        The lapsed holder must be fenced by then. Its ``last`` messages are deleted in the same transaction: nobody
        looks for them under its name again.
        """
        given = self._given | {
            "topics": [each.topic for each in pending],
            "firsts": [each.first for each in pending],
            "lapsed": pending[0].lapsed,
            "own": pending[0].own,
        }
        with self._connection.transaction():
            rows = self._connection.execute(query("outbox/claim"), given).fetchall()
            for topic, *_ in rows:
                if topic in last:
                    self._delete_sent(topic, last[topic])
        return [Claim(topic, Position.at(reached, newest), rewinds) for topic, reached, rewinds, newest in rows]

    def read(self, held: Sequence[Held], size: int) -> list[Batch]:
        """Delete what was sent, and read the next batch of each topic after that, in one round trip."""
        with self._connection.pipeline():
            if any(each.done for each in held):
                self._settle(held)
            cursor = self._select(held, size)
        return _batches(held, cursor.fetchall(), size)

    @contextmanager
    def sending(
        self, held: Sequence[Held], ahead: Sequence[Held], size: int
    ) -> Iterator[Callable[[], dict[str, Batch]]]:
        """The server's work while batches are sent. The function waits for it; Kafka may have them afterwards.

        It deletes what was sent before and renews the locks; that commit is flushed, and with it all that was read.
        Then it reads the next batches of those ``ahead``. The function returns these.
        """
        with self._connection.pipeline() as pipeline:
            renewed = self._settle(held)
            cursor = self._select(ahead, size) if ahead else None

            def finish() -> dict[str, Batch]:
                pipeline.sync()
                _check(held, renewed)
                rows = cursor.fetchall() if cursor is not None else []
                return {each.topic: batch for each, batch in zip(ahead, _batches(ahead, rows, size), strict=True)}

            yield finish

    def receive(self) -> None:
        """Take in what the server has written so far, so that it goes on: its buffers hold less than a batch."""
        self._connection.pgconn.consume_input()

    def _settle(self, held: Sequence[Held]) -> psycopg.Cursor[Any]:
        """A transaction of its own within a pipeline: a lock on rows must not last while a batch is read."""
        self._connection.execute("BEGIN")
        for each in held:
            self._delete(each.topic, each.done)
        renewed = self._update(held, "outbox/renew_topics")
        self._connection.execute("COMMIT")
        return renewed

    def _update(self, held: Sequence[Held], statement: str) -> psycopg.Cursor[Any]:
        in_order = sorted(held, key=lambda each: each.topic)
        given = self._given | {
            "topics": [each.topic for each in in_order],
            "rewinds": [each.claim.rewinds for each in in_order],
            "reached": [each.claim.position.reached for each in in_order],
        }
        return self._connection.execute(query(statement), given)

    def _select(self, held: Sequence[Held], size: int) -> psycopg.Cursor[Any]:
        places = [each.claim.position for each in held]
        running = [(each.topic, str(xid), low) for each in held for xid, low in each.claim.position.running.items()]
        given = self._given | {
            "topics": [each.topic for each in held],
            "rewinds": [each.claim.rewinds for each in held],
            "starts": [place.start for place in places],
            "limits": [each.limit for each in held],
            "of": [topic for topic, _, _ in running],
            "running": [xid for _, xid, _ in running],
            "lows": [low for _, _, low in running],
            "bytes": size,
        }
        return self._connection.cursor(binary=True).execute(query("outbox/read"), given)

    def release(self, held: Sequence[Held]) -> None:
        """Delete what was sent and give the locks back."""
        with self._connection.transaction(), self._connection.pipeline() as pipeline:
            for each in held:
                self._delete(each.topic, each.done)
            released = self._update(held, "outbox/release")
            pipeline.sync()
            _check(held, released)

    def fail(self, topic: str, reason: str, done: Sequence[int], *, missing: bool) -> None:
        """Delete what was sent and give the lock back after an error of the topic's; ``missing``: Kafka lacks it."""
        with self._connection.transaction():
            self._delete(topic, done)
            self._connection.execute(
                query("outbox/fail"), self._given | {"topic": topic, "reason": reason, "missing": missing}
            )

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
        self._connection.execute(query("outbox/set_max_bytes"), given)

    def _lock(self, topic: str) -> None:
        found = self._connection.execute(query("outbox/lock_topic"), self._given | {"topic": topic})
        if not found.rowcount:
            raise LeaseLost(f"another relay took over topic {topic!r}")

    def _delete(self, topic: str, ids: Sequence[int]) -> None:
        if ids:
            array = f"{{{str(list(ids))[1:-1]}}}"  # psycopg's own dumper takes ten times as long
            given = {"topic": topic, "ids": array, "first": ids[0], "last": ids[-1]}
            self._connection.execute(query("outbox/delete"), given)


def _check(held: Sequence[Held], updated: psycopg.Cursor[Any]) -> None:
    if updated.rowcount != len(held):
        raise LeaseLost(f"another relay took over one of {len(held)} topics such as {held[0].topic!r}")


def _batches(held: Sequence[Held], rows: list[Any], size: int) -> list[Batch]:
    """The rows of each topic: they follow the one without an id."""
    starts = [number for number, row in enumerate(rows) if row[0] is None]
    parts = [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
    found = {part[0][3]["topic"]: part for part in parts}
    return [_batch(each, found.get(each.topic), size) for each in held]


def _batch(held: Held, rows: list[Row] | None, size: int) -> Batch:
    if rows is None:
        raise LeaseLost(f"another relay took over topic {held.topic!r}")
    facts: Any = rows.pop(0)[3]
    if facts["rewinds"] != held.claim.rewinds:
        again = Claim(held.topic, Position.at(facts["reached"], held.claim.position.newest), facts["rewinds"])
        return Batch([], moved=again)
    return Batch(
        rows,
        tuple(Snapshot.parse(facts["snapshot"]).running(int(facts["own"]))),
        facts["newest"],
        facts["created"] or "",
        tuple(row[0] for row in rows if row[3] is not None and row[3][2]),
        full=len(rows) == held.limit or sum(len(row[2]) for row in rows if row[2] is not None) >= size,
    )


def open_outbox(conninfo: Mapping[str, Any], purpose: str) -> tuple[WatchedConnection, str]:
    """A connection in autocommit to a database with an outbox, and which database that is; see `open_part`."""
    connection, server = open_part(conninfo, _OUTBOX, purpose)
    return connection, server["identity"]

"""The source offset of one table: the part of the table that its topic holds, and how that part is kept up to date.

Its key and the fields ``timestamp``, ``timestamp_nanos`` and ``incrementing`` are those of Kafka Connect's offsets for
the JDBC source connector, so that a person can compare them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from compactory_connectors.postgres.snapshot import Snapshot

from .offset_parts import NOWHERE, Cursor, Edit, Identity, PartialPoll, Phase, ResendReason, SeenSnapshot

__all__ = ["SEEN_LIMIT", "SourceOffset", "offset_key", "query_key"]

SEEN_LIMIT = 60_000
"""Ids that one offset may hold (a message ends at 1 MB), divided evenly among its seen snapshots. A longer list is not
written; after a restart the rows of those ids are sent once more."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """The part of a table that the topic holds.

    ``seen_snapshot`` shows the rows that were sent; phases loading and comparing have none. ``durable`` is the newest
    seen snapshot that a crash of the server can't take back (its WAL was flushed). ``partial_polls`` came after
    ``seen_snapshot``.

    ``sweep`` says that keys which the table lacks are still to be removed from the topic. ``shape`` is a digest of the
    columns and triggers that the table had. ``topic`` is the name and id of the topic. ``partitions`` are the oids of
    the leaves of a partitioned table, ``new_partitions`` those of which every row is still to be sent: an attached
    partition brings rows that are older than any snapshot.

    ``rewind`` is the cursor that an operator set; only phase rewinding has it. ``initial_timestamp`` is the timestamp
    from which the first load reads rows, in the text form of Postgres. ``partition_count`` is the topic's.
    ``topic_end`` is the least sum of the end offsets of the topic's partitions. ``key_digest`` is a digest of what
    made the records' keys, None if unknown.

    What was sent depends on the server's WAL up to ``written``; the WAL up to ``flushed`` is known to be on disk. Both
    are bytes since the WAL began.
    """

    identity: Identity
    topic: tuple[str, str | None] | None = None
    shape: str | None = None
    phase: Phase = Phase.LOADING
    seen_snapshot: SeenSnapshot | None = None
    durable: SeenSnapshot | None = None
    partial_polls: tuple[PartialPoll, ...] = ()
    sweep: bool = False
    partitions: tuple[int, ...] = ()
    new_partitions: tuple[int, ...] = ()
    timestamp: int | None = None
    timestamp_nanos: int | None = None
    incrementing: int | None = None
    rewind: Cursor | None = None
    partition_count: int | None = None
    edited: Edit | None = None
    initial_timestamp: str | None = None
    written: int = 0
    flushed: int = 0
    resend_reason: ResendReason | None = None
    topic_end: int = 0
    key_digest: str | None = None

    def __post_init__(self) -> None:
        is_load = self.phase in {Phase.LOADING, Phase.COMPARING}
        if (self.phase is Phase.REWINDING) != (self.rewind is not None) or (is_load and self.seen_snapshot is not None):
            raise ValueError(f"an offset in phase {self.phase.value} has the fields of another phase")

    @property
    def is_durable(self) -> bool:
        """Return True if a crash of the server can take back nothing that was sent."""
        return self.durable is not None and self.written <= self.flushed

    @property
    def cursor(self) -> Cursor:
        """The newest position in the connector's own columns."""
        return Cursor(timestamp=self.timestamp, timestamp_nanos=self.timestamp_nanos, incrementing=self.incrementing)

    def with_cursor(self, cursor: Cursor) -> SourceOffset:
        return replace(self, **asdict(cursor))

    def for_server(
        self, identity: Identity, snapshot: Snapshot, wal: int | None = None, *, comparable: bool = True
    ) -> SourceOffset:
        """Adapt to the server that ``identity``, ``snapshot`` and the end of its ``wal`` were read from.

        A server that was shut down in order keeps everything. If a backend crashed, the WAL that was not flushed may be
        lost: if some of it was sent, all rows are compared with the topic, because transaction ids find neither a
        version that is old again nor a row that never was; else the durable seen snapshot is used. A server that
        recovered at its start may be a backup. So may one of another history, or whose counters are smaller than the
        stored ones: all rows are compared.

        A topic without keys, or one of several, is not ``comparable``, and must not be filled with every row after each
        crash: the durable seen snapshot is used.
        """
        unchanged = identity == self.identity
        moved = self if unchanged else replace(self, identity=identity.keep_session_of(self.identity))
        if self.seen_snapshot is None and not self.partial_polls:
            return moved
        if not (unchanged or identity.same_history(self.identity)) or (wal is not None and wal < self.flushed):
            return moved.restarted(ResendReason.HISTORY)
        if unchanged or identity.same_statistics(self.identity):
            is_older = self.seen_snapshot is not None and snapshot.xmax < self.seen_snapshot.snapshot.xmax
            return moved.restarted(ResendReason.HISTORY) if is_older else moved
        in_place = identity.postmaster_start == self.identity.postmaster_start
        must_compare = comparable and not (self.is_durable and in_place)
        if self.seen_snapshot is None or self.durable is None or must_compare:
            return moved.restarted(ResendReason.CRASH)
        if snapshot.xmax < self.durable.snapshot.xmax:
            return moved.restarted(ResendReason.HISTORY)
        return replace(moved, seen_snapshot=self.durable, partial_polls=(), resend_reason=ResendReason.CRASH)

    def for_keys(self, digest: str) -> SourceOffset:
        """Adapt to how keys are made now: after a change every row is sent before any key is removed.

        Rows are sent without comparing them with the topic: the topic may have a record in the wrong partition.
        """
        if self.key_digest in {None, digest}:
            return replace(self, key_digest=digest)
        return replace(self.restarted(ResendReason.KEYS).without_comparison(), key_digest=digest)

    def for_shape(self, shape: str) -> SourceOffset:
        """Adapt to the table's columns and triggers.

        After a change rows may have been written without a stamp: until the next seen snapshot ``xmin`` decides.
        Deletions may not have been logged either, so keys that the table lacks are removed.
        """
        if shape == self.shape:
            return self
        if self.seen_snapshot is None and not self.partial_polls:
            return replace(self, shape=shape)
        polls = tuple(replace(poll, seen_snapshot=poll.seen_snapshot.by_xmin()) for poll in self.partial_polls)
        return replace(
            self,
            shape=shape,
            seen_snapshot=self.seen_snapshot and self.seen_snapshot.by_xmin(),
            durable=self.durable and self.durable.by_xmin(),
            partial_polls=polls,
            sweep=True,
            resend_reason=self.resend_reason or ResendReason.SHAPE,
        )

    def for_partitions(self, partitions: tuple[int, ...]) -> SourceOffset:
        """Adapt to the table's partitions: new ones are sent whole, keys of detached ones are swept.

        Partial polls from before a partition was attached do not cover its rows, which may be older than all of them.
        """
        if partitions == self.partitions and not self.new_partitions:
            return self
        polls = self.partial_polls if {*partitions} <= {*self.partitions} else ()
        if self.seen_snapshot is None:
            return replace(self, partitions=partitions, new_partitions=(), partial_polls=polls)
        sent = {*self.partitions} - {*self.new_partitions}
        new_partitions = tuple(oid for oid in partitions if oid not in sent)
        detached = {*self.partitions} - {*partitions}
        return replace(
            self,
            partitions=partitions,
            new_partitions=new_partitions,
            partial_polls=polls,
            sweep=self.sweep or bool(detached),
            resend_reason=self.resend_reason or (ResendReason.PARTITION if new_partitions else None),
        )

    def for_restored_topic(self, *, sweep: bool) -> SourceOffset:
        """Adapt to an older copy of the topic that was restored: read all rows."""
        return replace(self.with_cursor(Cursor()).restarted(ResendReason.TOPIC), topic_end=0, sweep=sweep)

    def restarted(self, reason: ResendReason) -> SourceOffset:
        """Forget what was sent: every row that the topic lacks is sent, and keys that the table lacks are removed.

        A later load than the first reads all rows, whatever ``initial_timestamp``: some have changed in between.
        """
        return replace(
            self,
            seen_snapshot=None,
            durable=None,
            partial_polls=(),
            sweep=True,
            phase=Phase.COMPARING,
            rewind=None,
            initial_timestamp=self.initial_timestamp if self.seen_snapshot is None else None,
            written=0,
            flushed=0,
            resend_reason=reason,
        )

    def without_comparison(self) -> SourceOffset:
        """Send every row instead of comparing it with the topic."""
        return replace(self, phase=Phase.LOADING) if self.phase is Phase.COMPARING else self

    def rewound_to(self, cursor: Cursor) -> SourceOffset:
        """Send the rows after a cursor once more, or only those if there is no seen snapshot."""
        return replace(self, phase=Phase.REWINDING, rewind=cursor)

    def completed(self, seen_snapshot: SeenSnapshot | None = None, **changes: Any) -> SourceOffset:
        """Return the offset after a poll to its end. Without a seen snapshot the next poll begins at the cursor.

        ``changes`` are further fields that change.
        """
        return replace(
            self,
            phase=Phase.STEADY,
            seen_snapshot=seen_snapshot,
            partial_polls=(),
            new_partitions=(),
            rewind=None,
            resend_reason=None,
            **changes,
        )

    def dumps(self) -> bytes:
        """Return the JSON value for the offsets topic."""
        limit = SEEN_LIMIT // (2 + len(self.partial_polls))
        snapshots = (self.seen_snapshot, self.durable, *[poll.seen_snapshot for poll in self.partial_polls])
        stored = self
        if self.identity.sessions is not None:  # those of the database now
            stored = replace(self, identity=replace(self.identity, sessions=None))
        if any(snapshot.exceeds(limit) for snapshot in snapshots if snapshot is not None):
            stored = replace(
                stored,
                seen_snapshot=self.seen_snapshot and self.seen_snapshot.limited(limit),
                durable=self.durable and self.durable.limited(limit),
                partial_polls=tuple(
                    replace(poll, seen_snapshot=poll.seen_snapshot.limited(limit)) for poll in self.partial_polls
                ),
                resend_reason=self.resend_reason or ResendReason.IDS,
            )
        return _encode(stored)

    @classmethod
    def loads(cls, raw: bytes) -> SourceOffset:
        """Read :meth:`dumps`, or an offset of Kafka Connect: the next poll reads the rows after its timestamp and id.

        Raises ValueError for anything else.
        """
        try:
            fields = msgspec.json.decode(raw, type=dict[str, Any])
            if "identity" not in fields:
                cursor = Cursor.from_fields(fields)
                if cursor.is_empty:
                    raise ValueError("it has neither a timestamp nor an id")
                return cls(identity=NOWHERE).rewound_to(cursor).with_cursor(cursor)
            return msgspec.convert(fields, cls)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error


def offset_key(connector: str, *names: str) -> bytes:
    """Return the key of a table's offset record; sources name its database, schema and table."""
    return _encode([connector, {"protocol": "1", "table": ".".join(names)}])


def query_key(connector: str) -> bytes:
    """Return the key of the offset record of a connector with a query."""
    return _encode([connector, {"query": "query"}])

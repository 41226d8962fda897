"""The source offset of one table: the part of the table that its topic holds, and how that part is kept up to date."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from compactory_connectors.postgres.snapshot import Snapshot

from .offset_parts import Cursor, Edit, Identity, PartialPoll, Phase, ResendReason, SeenSnapshot
from .stored_fields import StoredFields, StoredPage, StoredSnapshot

__all__ = ["SEEN_LIMIT", "SourceOffset"]

SEEN_LIMIT = 60_000
"""Ids that one offset may hold (a message ends at 1 MB), divided evenly among its seen snapshots. A longer list is not
written; after a restart the rows of those ids are sent once more."""

_decode = msgspec.json.Decoder(StoredFields).decode
_encode = msgspec.json.Encoder().encode
_IDENTITY_FIELDS = (
    "system_identifier",
    "timeline",
    "postmaster_start",
    "statistics_start",
    "table_oid",
    "database_oid",
    "session",
)


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
        assert (self.phase is Phase.REWINDING) == (self.rewind is not None), self.phase
        assert self.seen_snapshot is None or self.phase not in {Phase.LOADING, Phase.COMPARING}, self.phase

    @property
    def is_durable(self) -> bool:
        """Return True if a crash of the server can take back nothing that was sent."""
        return self.durable is not None and self.written <= self.flushed

    @property
    def cursor(self) -> Cursor:
        """The newest position in the connector's own columns."""
        return Cursor(timestamp=self.timestamp, timestamp_nanos=self.timestamp_nanos, incrementing=self.incrementing)

    def with_cursor(self, cursor: Cursor) -> SourceOffset:
        """Return the offset with another cursor of the connector's own columns."""
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

        Rows are not compared: a record that the topic has may be in another partition than where it belongs now.
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
        polls = tuple(PartialPoll(poll.seen_snapshot.by_xmin(), poll.place) for poll in self.partial_polls)
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
        exceeds = any(len(snapshot.seen or ()) > limit for snapshot in snapshots if snapshot is not None)
        newest = StoredSnapshot.of(self.seen_snapshot, limit)
        pages = []
        for poll in self.partial_polls:
            page = StoredSnapshot.of(poll.seen_snapshot, limit)
            pages.append(StoredPage(snapshot=page.snapshot, seen=page.seen, after=[*poll.place]))
        edit = self.edited
        fields = StoredFields(
            timestamp=self.timestamp,
            timestamp_nanos=self.timestamp_nanos,
            incrementing=self.incrementing,
            snapshot=newest.snapshot,
            seen=newest.seen,
            **{name: getattr(self.identity, name) for name in _IDENTITY_FIELDS},
            topic=self.topic,
            shape=self.shape,
            durable=StoredSnapshot.of(self.durable, limit),
            pages=pages,
            sweep=self.sweep,
            partitions=self.partitions,
            fresh=self.new_partitions,
            rewind=self.rewind,
            spread=self.partition_count,
            phase=self.phase,
            initial=self.initial_timestamp,
            written=self.written,
            flushed=self.flushed,
            again=self.resend_reason or (ResendReason.IDS if exceeds else None),
            topic_end=self.topic_end,
            keys=self.key_digest,
            edited_by=edit.by if edit else msgspec.UNSET,
            edited_at=edit.at if edit else msgspec.UNSET,
            edited=edit.what if edit else msgspec.UNSET,
        )
        return _encode(fields)

    @classmethod
    def loads(cls, raw: bytes) -> SourceOffset:
        """Read :meth:`dumps`, or fewer fields: those of Kafka Connect's offsets are enough.

        A value without ``pages`` was not written by a source; without a snapshot the next poll reads the rows after its
        timestamp and id. Raises ValueError for anything else.
        """
        try:
            fields = _decode(raw)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error
        seen_snapshot = StoredSnapshot(snapshot=fields.snapshot, seen=fields.seen).read()
        rewind = fields.rewind
        cursor = Cursor(
            timestamp=fields.timestamp, timestamp_nanos=fields.timestamp_nanos, incrementing=fields.incrementing
        )
        if fields.pages is msgspec.UNSET and seen_snapshot is None and not cursor.is_empty:
            rewind = cursor
        return cls(
            identity=Identity(**{name: getattr(fields, name) for name in _IDENTITY_FIELDS}),
            phase=_phase(fields.phase, seen_snapshot, rewind),
            topic=fields.topic,
            shape=fields.shape,
            seen_snapshot=seen_snapshot,
            durable=fields.durable.read(),
            partial_polls=tuple(page.read_partial_poll() for page in fields.pages or ()),
            sweep=fields.sweep,
            partitions=fields.partitions,
            new_partitions=fields.fresh,
            **asdict(cursor),
            rewind=rewind,
            partition_count=fields.spread,
            edited=_edit(fields),
            initial_timestamp=fields.initial,
            written=fields.written,
            flushed=fields.flushed,
            resend_reason=fields.again,
            topic_end=fields.topic_end,
            key_digest=fields.keys,
        )


def _phase(stored: Phase | None, seen_snapshot: SeenSnapshot | None, rewind: Cursor | None) -> Phase:
    """Return the stored phase, or the one that the other fields need."""
    if rewind is not None:
        return Phase.REWINDING
    if seen_snapshot is not None:
        return Phase.STEADY
    return Phase.LOADING if stored is None or stored is Phase.REWINDING else stored


def _edit(fields: StoredFields) -> Edit | None:
    if fields.edited_at is msgspec.UNSET:
        return None
    return Edit(fields.edited_by or "", fields.edited_at, fields.edited or "")

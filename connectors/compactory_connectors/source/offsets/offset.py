"""The source offset of one table: what has been published, in the form kept in the offsets topic.

Key and first fields have the shape of Kafka Connect's own offsets for the JDBC source connector, so that a person can
compare them; the rest is what exact polling and the recognition of another server need.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from compactory_connectors.postgres.snapshot import Snapshot

from .cursor import Cursor
from .identity import STORED_FIELDS, Identity
from .phase import Phase, ResendReason
from .seen_snapshot import SeenSnapshot

__all__ = ["SEEN_LIMIT", "Edit", "PartialPoll", "SourceOffset"]

SEEN_LIMIT = 60_000
"""Ids that one offset may hold (a message ends at 1 MB), shared evenly by its seen snapshots. A list that is longer
than its share is not written; after a restart the rows of those ids are sent once more."""


@dataclass(frozen=True, slots=True)
class PartialPoll:
    """A poll that was only partly published: rows visible at ``seen_snapshot`` up to ``after`` are in the topic.

    ``after`` is the phase and then the columns of the order of emission in the text form of Postgres, None for NULL:
    timestamp and id, or what the mode and the primary key make of it. Of deletions the last one is the log's id.
    """

    seen_snapshot: SeenSnapshot
    after: tuple[int, *tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of an offset by hand: its author, time (ISO 8601, UTC) and command; polls carry it along."""

    by: str
    at: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """The part of a table that the topic holds.

    ``phase`` says which rows the next poll takes. ``seen_snapshot`` shows the rows that were sent; phases loading and
    comparing have none. ``durable`` is the newest seen snapshot that a crash of the server can't take back
    (its WAL was flushed). ``partial_polls`` came after ``seen_snapshot``.
    ``sweep`` says that keys which the table lacks are still to be removed from the topic. ``shape`` is a digest of the
    columns and triggers that the table had. ``topic`` is the name and id of the topic that all of this is about.
    ``partitions`` are the oids of the leaves of a partitioned table, ``fresh`` those of which every row is still to be
    sent: an attached partition brings rows that are older than any snapshot.

    ``rewind`` is the place that somebody set; phase rewinding has it, and no other.
    ``initial`` is the timestamp from which on the first load takes
    rows, in the text form of Postgres; a later one takes all, for what changed in between must not be left out.
    ``resend_reason`` is the reason for which rows are sent that were sent before.

    ``topic_end`` is the least sum of the end offsets of the topic's partitions.

    What was sent rests on the server's WAL up to ``written``; up to ``flushed`` it is known to be on disk. Both are
    bytes since the WAL began.

    ``keys`` is a digest of what made the records' keys, None where that was not written down.
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
    fresh: tuple[int, ...] = ()
    timestamp: int | None = None
    timestamp_nanos: int | None = None
    incrementing: int | None = None
    rewind: Cursor | None = None
    spread: int | None = None
    edited: Edit | None = None
    initial: str | None = None
    written: int = 0
    flushed: int = 0
    resend_reason: ResendReason | None = None
    topic_end: int = 0
    keys: str | None = None

    def __post_init__(self) -> None:
        assert (self.phase is Phase.REWINDING) == (self.rewind is not None), self.phase
        assert self.seen_snapshot is None or self.phase not in {Phase.LOADING, Phase.COMPARING}, self.phase

    @property
    def settled(self) -> bool:
        """Whether a crash of the server can take back nothing that was sent."""
        return self.durable is not None and self.written <= self.flushed

    @property
    def cursor(self) -> Cursor:
        """How far the connector's own columns have got."""
        return Cursor(timestamp=self.timestamp, timestamp_nanos=self.timestamp_nanos, incrementing=self.incrementing)

    def at(self, cursor: Cursor) -> SourceOffset:
        """With the cursor of the connector's own columns."""
        return replace(self, **asdict(cursor))

    def on(
        self, identity: Identity, snapshot: Snapshot, wal: int | None = None, *, comparable: bool = True
    ) -> SourceOffset:
        """Adapt to the server that ``identity``, ``snapshot`` and the end of its ``wal`` were read from.

        A server that was shut down in order goes on where it was. Where a backend crashed, what was not flushed may
        have been taken back: if some of that was sent, all rows are compared with the topic, for neither a version that
        is old again nor a row that never was is found by transaction ids; else the durable seen snapshot is right. A
        server that recovered at its start may be a backup of this one. So may one of another history, or whose counters
        run behind the stored ones: the same comparison.

        A topic without keys, or one of several, is not ``comparable``, and must not be filled with every row after each
        crash: the durable seen snapshot has to do.
        """
        same = identity == self.identity
        moved = self if same else replace(self, identity=identity.following(self.identity))
        if self.seen_snapshot is None and not self.partial_polls:
            return moved
        if not (same or identity.same_history(self.identity)) or (wal is not None and wal < self.flushed):
            return moved.afresh(ResendReason.HISTORY)
        if same or identity.same_memory(self.identity):
            behind = self.seen_snapshot is not None and snapshot.xmax < self.seen_snapshot.snapshot.xmax
            return moved.afresh(ResendReason.HISTORY) if behind else moved
        in_place = identity.postmaster_start == self.identity.postmaster_start
        doubtful = comparable and not (self.settled and in_place)
        if self.seen_snapshot is None or self.durable is None or doubtful:
            return moved.afresh(ResendReason.CRASH)
        if snapshot.xmax < self.durable.snapshot.xmax:
            return moved.afresh(ResendReason.HISTORY)
        return replace(moved, seen_snapshot=self.durable, partial_polls=(), resend_reason=ResendReason.CRASH)

    def afresh(self, why: ResendReason) -> SourceOffset:
        """Trust nothing: every row that the topic lacks is sent, and keys that the table lacks are removed."""
        initial = self.initial if self.seen_snapshot is None else None
        return replace(
            self,
            seen_snapshot=None,
            durable=None,
            partial_polls=(),
            sweep=True,
            phase=Phase.COMPARING,
            rewind=None,
            initial=initial,
            written=0,
            flushed=0,
            resend_reason=why,
        )

    def uncompared(self) -> SourceOffset:
        """Send every row in place of comparing: what the topic has of a row says nothing."""
        return replace(self, phase=Phase.LOADING) if self.phase is Phase.COMPARING else self

    def beyond(self, place: Cursor) -> SourceOffset:
        """Send the rows beyond a place once more, or those alone where there is no seen snapshot."""
        return replace(self, phase=Phase.REWINDING, rewind=place)

    def polled(self, seen_snapshot: SeenSnapshot | None = None, **others: Any) -> SourceOffset:
        """The topic has every row that was due. Without a seen snapshot the cursor says which.

        ``others`` are further fields that change.
        """
        return replace(
            self,
            phase=Phase.STEADY,
            seen_snapshot=seen_snapshot,
            partial_polls=(),
            fresh=(),
            rewind=None,
            resend_reason=None,
            **others,
        )

    def without_topic(self, *, sweep: bool) -> SourceOffset:
        """Trust nothing that is said of the topic, an older copy of which was put back."""
        return replace(self.at(Cursor()).afresh(ResendReason.TOPIC), topic_end=0, sweep=sweep)

    def with_keys(self, keys: str) -> SourceOffset:
        """Adapt to what makes keys now: where that is not as it was, every row is sent before any key is removed.

        They are not compared: a record that the topic has may be in another partition than where it belongs now.
        """
        if self.keys in {None, keys}:
            return replace(self, keys=keys)
        return replace(self.afresh(ResendReason.KEYS).uncompared(), keys=keys)

    def under(self, shape: str) -> SourceOffset:
        """Adapt to the table's shape now.

        Where it is another one, rows may have been written without a stamp: until the next seen snapshot ``xmin``
        decides. Deletions may not have been logged either, so keys that the table lacks are removed.
        """
        if shape == self.shape:
            return self
        if self.seen_snapshot is None and not self.partial_polls:
            return replace(self, shape=shape)
        polls = tuple(PartialPoll(_unstamped(poll.seen_snapshot), poll.after) for poll in self.partial_polls)
        seen_snapshot, durable = (_unstamped(known) if known else None for known in (self.seen_snapshot, self.durable))
        return replace(
            self,
            shape=shape,
            seen_snapshot=seen_snapshot,
            durable=durable,
            partial_polls=polls,
            sweep=True,
            resend_reason=self.resend_reason or ResendReason.SHAPE,
        )

    def within(self, partitions: tuple[int, ...]) -> SourceOffset:
        """Adapt to the partitions that the table has now: new ones are sent whole, keys of lost ones are swept.

        Partial polls from before a partition came say nothing of its rows, which may be older than all of them.
        """
        if partitions == self.partitions and not self.fresh:
            return self
        polls = self.partial_polls if {*partitions} <= {*self.partitions} else ()
        if self.seen_snapshot is None:
            return replace(self, partitions=partitions, fresh=(), partial_polls=polls)
        came = {*self.fresh, *partitions} - ({*self.partitions} - {*self.fresh})
        fresh = tuple(oid for oid in partitions if oid in came)
        gone = not {*self.partitions} <= {*partitions}
        resend_reason = self.resend_reason or (ResendReason.PARTITION if fresh else None)
        return replace(
            self,
            partitions=partitions,
            fresh=fresh,
            partial_polls=polls,
            sweep=self.sweep or gone,
            resend_reason=resend_reason,
        )

    def dumps(self) -> bytes:
        """The JSON value for the offsets topic."""
        share = SEEN_LIMIT // (2 + len(self.partial_polls))
        known = (self.seen_snapshot, self.durable, *[poll.seen_snapshot for poll in self.partial_polls])
        left_out = [each for each in known if each and len(each.seen or ()) > share]
        resend_reason = self.resend_reason or (ResendReason.IDS if left_out else None)
        seen_snapshot, durable, *pages = [
            {
                "snapshot": str(each.snapshot) if each else None,
                **({"seen": [] if each in left_out else sorted(each.seen)} if each and each.seen is not None else {}),
            }
            for each in known
        ]
        value: dict[str, Any] = {
            "timestamp": self.timestamp,
            "timestamp_nanos": self.timestamp_nanos,
            "incrementing": self.incrementing,
            **seen_snapshot,
            **{name: getattr(self.identity, name) for name in STORED_FIELDS},
            "topic": self.topic,
            "shape": self.shape,
            "durable": durable,
            "pages": [{**page, "after": poll.after} for page, poll in zip(pages, self.partial_polls, strict=True)],
            "sweep": self.sweep,
            "partitions": self.partitions,
            "fresh": self.fresh,
            "rewind": asdict(self.rewind) if self.rewind else None,
            "spread": self.spread,
            "phase": self.phase.value,
            "compare": self.phase is Phase.COMPARING,
            "initial": self.initial,
            "written": self.written,
            "flushed": self.flushed,
            "again": resend_reason.value if resend_reason else None,
            "topic_end": self.topic_end,
            "keys": self.keys,
        }
        if self.edited:
            value |= {"edited_by": self.edited.by, "edited_at": self.edited.at, "edited": self.edited.what}
        return orjson.dumps(value)

    @classmethod
    def loads(cls, raw: bytes) -> SourceOffset:
        """Read :meth:`dumps`, or less of it: the fields that Kafka Connect's offsets have are enough.

        What lacks ``pages`` was not written by a source; without a snapshot its timestamp and id are a place to go on
        from.
        Raises ValueError when it is something else.
        """
        try:
            return cls._read(orjson.loads(raw))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _read(cls, value: dict[str, Any]) -> SourceOffset:
        cursor = Cursor.read(value)
        seen_snapshot = SeenSnapshot.read(value)
        rewind = Cursor.read(value["rewind"]) if value.get("rewind") else None
        if "pages" not in value and seen_snapshot is None and not cursor.empty:
            rewind = cursor
        return cls(
            identity=Identity.read(value),
            phase=_phase(value, seen_snapshot, rewind),
            topic=_topic(value.get("topic")),
            shape=value.get("shape"),
            seen_snapshot=seen_snapshot,
            durable=SeenSnapshot.read(value.get("durable") or {}),
            partial_polls=tuple(_partial_poll(poll) for poll in value.get("pages", ())),
            sweep=bool(value.get("sweep", False)),
            partitions=tuple(map(int, value.get("partitions", ()))),
            fresh=tuple(map(int, value.get("fresh", ()))),
            **asdict(cursor),
            rewind=rewind,
            spread=value.get("spread"),
            edited=_edit(value),
            initial=value.get("initial"),
            written=int(value.get("written") or 0),
            flushed=int(value.get("flushed") or 0),
            resend_reason=ResendReason(value["again"]) if value.get("again") else None,
            topic_end=int(value.get("topic_end") or 0),
            keys=value.get("keys"),
        )


def _unstamped(seen_snapshot: SeenSnapshot) -> SeenSnapshot:
    return SeenSnapshot(seen_snapshot.snapshot, seen_snapshot.seen or frozenset())


def _phase(value: dict[str, Any], seen_snapshot: SeenSnapshot | None, rewind: Cursor | None) -> Phase:
    """The phase that is written, or that of an offset from before phases were written."""
    if rewind is not None:
        return Phase.REWINDING
    if seen_snapshot is not None:
        return Phase.STEADY
    if value.get("compare"):
        return Phase.COMPARING
    steady = value.get("phase") == Phase.STEADY.value
    return Phase.STEADY if steady else Phase.LOADING


def _edit(value: dict[str, Any]) -> Edit | None:
    if "edited_at" not in value:
        return None
    return Edit(str(value.get("edited_by")), str(value["edited_at"]), str(value.get("edited")))


def _topic(value: list[str] | None) -> tuple[str, str | None] | None:
    if value is None:
        return None
    name, topic_id = value
    return name, topic_id


def _partial_poll(value: dict[str, Any]) -> PartialPoll:
    seen_snapshot = SeenSnapshot.read(value)
    if seen_snapshot is None:
        raise ValueError("a partial poll without its snapshot")
    phase, *place = value["after"]
    return PartialPoll(seen_snapshot, (phase, *place))

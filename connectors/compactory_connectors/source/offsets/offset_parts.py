"""The parts of an offset: cursor, server identity, seen snapshot, phase. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any

import msgspec

from compactory_connectors.postgres.snapshot import Snapshot

__all__ = ["NOWHERE", "Cursor", "Edit", "Identity", "PartialPoll", "Phase", "ResendReason", "RowPhase", "SeenSnapshot"]


class Phase(Enum):
    """The rows that the next poll of a table reads.

    Loading and comparing begin without a seen snapshot; each phase but steady ends with one complete poll. Any phase
    becomes comparing when the offset can't be trusted (`SourceOffset.restarted`), and rewinding when an operator sets
    the offset to a cursor (`SourceOffset.rewound_to`).
    """

    LOADING = "loading"  # every row
    COMPARING = "comparing"  # every row that the topic does not have byte for byte
    REWINDING = "rewinding"  # rows after a cursor; with a seen snapshot also those that changed since
    STEADY = "steady"  # rows that changed since the seen snapshot


class ResendReason(Enum):
    """The reason why a poll sends rows again that were sent before. The value is a metric's label."""

    CRASH = "crash"  # the server crashed: it may have lost what was sent, and reuse transaction ids
    HISTORY = "history"  # another server, timeline, database or table: nothing is comparable
    DISTANCE = "distance"  # the offset is older than 2³¹ transactions
    IDS = "ids"  # the ids that were seen were too many for one offset
    SHAPE = "shape"  # the table was rewritten, or its triggers were others for a while
    PARTITION = "partition"  # an attached partition is sent whole
    SPREAD = "spread"  # the topic was given more partitions
    TOPIC = "topic"  # the topic ends before what was written to it: an older copy was restored
    KEYS = "keys"  # the records' keys or their partitions are made in another way than before
    PLACE = "place"  # an operator set the offset back


class RowPhase(IntEnum):
    """The kind of a row of a poll, and the first part of the order of emission. Queries return it as text."""

    LIVING = 0
    DEACTIVATED = 1  # the soft-delete column is false
    DELETED = 2  # from the deletion log
    INCOMPLETE = 3  # from the deletion log, without a column that its key needs

    @property
    def raw(self) -> bytes:
        """The value as Postgres returns it."""
        return b"%d" % self


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in the connector's own order of rows, in the fields of Kafka Connect's offsets.

    ``timestamp`` is in milliseconds since 1970-01-01T00:00Z, ``timestamp_nanos`` the nanoseconds within its second.
    None: the position does not depend on that column.
    """

    timestamp: int | None = None
    timestamp_nanos: int | None = None
    incrementing: int | None = None

    @classmethod
    def from_micros(cls, micros: int | None, incrementing: int | None = None) -> Cursor:
        """Return the cursor of a timestamp in microseconds since 1970-01-01T00:00Z."""
        if micros is None:
            return cls(incrementing=incrementing)
        seconds, fraction = divmod(micros, 1_000_000)
        return cls(
            timestamp=seconds * 1000 + fraction // 1000, timestamp_nanos=fraction * 1000, incrementing=incrementing
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Cursor:
        """Read the fields of a JSON object; others are ignored. Raises ValueError for one that is no whole number."""
        try:
            return msgspec.convert(dict(fields), cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error

    @property
    def micros(self) -> int | None:
        """The timestamp in microseconds since 1970-01-01T00:00Z."""
        if self.timestamp is None or self.timestamp_nanos is None:
            return None if self.timestamp is None else self.timestamp * 1000
        return self.timestamp // 1000 * 1_000_000 + self.timestamp_nanos // 1000

    @property
    def is_empty(self) -> bool:
        return self.timestamp is None and self.incrementing is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The server and table that the transaction ids of an offset belong to.

    ``statistics_start`` has times that all change when the server recovers from a crash, its own or that of a backend
    (an out-of-memory kill, which the postmaster and its start time survive). A clean shutdown keeps the statistics, and
    whoever resets some of them leaves the others.

    ``session`` is an id that the source wrote into the database when it began to publish; ``sessions`` are those that
    the database has, None if it was not asked. An older copy of the database lacks the newer ones.
    """

    system_identifier: str
    timeline: int
    postmaster_start: str
    statistics_start: str
    table_oid: int
    database_oid: int = 0
    session: str | None = None
    sessions: frozenset[str] | None = field(default=None, compare=False)

    def same_history(self, stored: Identity) -> bool:
        """Return True if transaction ids of both can be compared: not after a promotion or a restore."""
        return (self.system_identifier, self.timeline, self.database_oid, self.table_oid) == (
            stored.system_identifier,
            stored.timeline,
            stored.database_oid,
            stored.table_oid,
        ) and self._has_session_of(stored)

    def same_statistics(self, stored: Identity) -> bool:
        """Return True if the server did not crash in between: it ran on, or was shut down and started."""
        unchanged = {*self.statistics_start.split(",")} & {*stored.statistics_start.split(",")}
        return self.same_history(stored) and bool(unchanged)

    def keep_session_of(self, stored: Identity) -> Identity:
        """Return this identity with the stored session if the database was not asked for its sessions."""
        return replace(self, session=stored.session) if self.sessions is None else self

    def replaces(self, server: Identity) -> bool:
        """Return True if this is a promoted standby (or a copy of one) of the server."""
        return self.system_identifier == server.system_identifier and self.timeline > server.timeline

    def _has_session_of(self, stored: Identity) -> bool:
        if self.sessions is None or stored.session is None:
            return True
        return stored.session == self.session or stored.session in self.sessions


NOWHERE = Identity(system_identifier="", timeline=0, postmaster_start="", statistics_start="", table_oid=0)
"""The identity of an offset that was set by hand: the next poll replaces it."""


@dataclass(frozen=True, slots=True)
class SeenSnapshot:
    """All row versions of one table that a poll has seen.

    ``updated_date`` is a transaction's start and ids are assigned before the commit, so neither tells which rows became
    visible since the last poll. A seen snapshot does: the ``pg_snapshot`` of that poll and ``seen``. ``seen`` is None
    for a table with ``updated_xid`` (always the top-level transaction's id: the snapshot is the whole state). Otherwise
    it holds the 64-bit ids, at or above ``snapshot.xmin``, of row versions that were visible: a row's ``xmin`` may be a
    savepoint's id, which the snapshot does not list.

    Source: PostgreSQL documentation, 9.27 "Transaction ID and Snapshot Information Functions".
    """

    snapshot: Snapshot
    seen: frozenset[int] | None = None

    def exceeds(self, limit: int) -> bool:
        return len(self.seen or ()) > limit

    def limited(self, limit: int) -> SeenSnapshot:
        """Return the snapshot, without its ids if they are more than ``limit``."""
        return SeenSnapshot(self.snapshot, frozenset()) if self.exceeds(limit) else self

    def by_xmin(self) -> SeenSnapshot:
        """Return the snapshot for rows that are recognized by ``xmin``, not by ``updated_xid``."""
        return SeenSnapshot(self.snapshot, self.seen or frozenset())


@dataclass(frozen=True, slots=True)
class PartialPoll:
    """A poll that was only partly published: rows visible at ``seen_snapshot`` up to ``place`` are in the topic.

    ``place`` has the columns of the order of emission after the row phase, in the text form of Postgres, None for NULL:
    timestamp and id, or what the mode and the primary key make of it. Of deletions the last one is the log's id.
    """

    seen_snapshot: SeenSnapshot
    phase: RowPhase
    place: tuple[str | None, ...]

    @property
    def in_deletions(self) -> bool:
        """Return True if every row was published, and deletions up to ``place``."""
        return self.phase is RowPhase.DELETED


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of an offset by hand: its author, time (ISO 8601, UTC) and command; polls carry it along."""

    by: str
    at: str
    command: str

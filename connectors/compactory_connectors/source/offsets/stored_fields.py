"""The JSON fields of an offset record, and its keys.

Keys and first fields have the shape of Kafka Connect's own offsets for the JDBC source connector, so that a person can
compare them; the others are what exact polling and the recognition of another server need.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from compactory_connectors.postgres.snapshot import Snapshot

from .offset_parts import Cursor, PartialPoll, Phase, ResendReason, RowPhase, SeenSnapshot

__all__ = ["StoredFields", "StoredPage", "StoredSnapshot", "offset_key", "query_key"]


def offset_key(connector: str, *names: str) -> bytes:
    """Return the key of a table's offset record; sources name its database, schema and table."""
    return msgspec.json.encode([connector, {"protocol": "1", "table": ".".join(names)}])


def query_key(connector: str) -> bytes:
    """Return the key of the offset record of a connector with a query."""
    return msgspec.json.encode([connector, {"query": "query"}])


class StoredSnapshot(Struct, kw_only=True, frozen=True):
    """A seen snapshot; ``seen`` is unset for a table with ``updated_xid``."""

    snapshot: str | None = None
    seen: list[int] | UnsetType = UNSET

    @classmethod
    def of(cls, seen_snapshot: SeenSnapshot | None, limit: int) -> StoredSnapshot:
        """Return the fields of a seen snapshot, without its ids if there are more than ``limit``."""
        if seen_snapshot is None:
            return cls()
        ids = seen_snapshot.seen
        stored_ids = UNSET if ids is None else sorted(ids) if len(ids) <= limit else []
        return cls(snapshot=str(seen_snapshot.snapshot), seen=stored_ids)

    def read(self) -> SeenSnapshot | None:
        """Return the seen snapshot, None if there is none. Raises ValueError."""
        if self.snapshot is None:
            return None
        return SeenSnapshot(Snapshot.parse(self.snapshot), None if self.seen is UNSET else frozenset(self.seen))


class StoredPage(StoredSnapshot, kw_only=True, frozen=True):
    """A partial poll."""

    after: list[int | str | None]

    def read_partial_poll(self) -> PartialPoll:
        """Return the partial poll. Raises ValueError."""
        seen_snapshot = self.read()
        if seen_snapshot is None or not self.after:
            raise ValueError("a partial poll lacks its snapshot or its place")
        phase, *texts = self.after
        return PartialPoll(
            seen_snapshot, (RowPhase(int(phase or 0)), *(None if text is None else str(text) for text in texts))
        )


class StoredFields(Struct, kw_only=True, frozen=True):
    """All fields of an offset record's value. ``pages`` is unset in a value that no source has written."""

    timestamp: int | None = None
    timestamp_nanos: int | None = None
    incrementing: int | None = None
    snapshot: str | None = None
    seen: list[int] | UnsetType = UNSET
    system_identifier: str = ""
    timeline: int = 0
    postmaster_start: str = ""
    statistics_start: str = ""
    table_oid: int = 0
    database_oid: int = 0
    session: str | None = None
    topic: tuple[str, str | None] | None = None
    shape: str | None = None
    durable: StoredSnapshot = StoredSnapshot()
    pages: list[StoredPage] | UnsetType = UNSET
    sweep: bool = False
    partitions: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    rewind: Cursor | None = None
    spread: int | None = None
    phase: Phase | None = None
    initial: str | None = None
    written: int = 0
    flushed: int = 0
    again: ResendReason | None = None
    topic_end: int = 0
    keys: str | None = None
    edited_by: str | UnsetType = UNSET
    edited_at: str | UnsetType = UNSET
    edited: str | UnsetType = UNSET

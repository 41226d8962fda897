"""The source offset of one table: what has been published, in the form kept in the offsets topic.

Key and first fields have the shape of Kafka Connect's own offsets for the JDBC source connector, so that a person can
compare them; the rest is what exact polling and the recognition of another server need.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .horizon import Horizon, Snapshot

__all__ = ["SEEN_LIMIT", "Identity", "Page", "SourceOffset", "offset_key", "sharing"]

SEEN_LIMIT = 60_000
"""Ids that one offset may hold (a message ends at 1 MB), shared evenly by its horizons. A list that is longer than its
share is not written; after a restart the rows of those ids are sent once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which server and table the transaction ids of an offset belong to.

    ``statistics_start`` changes when the server recovers from the crash of a backend (an out-of-memory kill): unflushed
    ids are lost then as well, while the postmaster and its start time stay.
    """

    system_identifier: str
    timeline: int
    postmaster_start: str
    statistics_start: str
    table_oid: int

    def same_history(self, other: Identity) -> bool:
        """Whether transaction ids of both can be compared (a restarted server: yes; promoted or restored: no)."""
        return (self.system_identifier, self.timeline, self.table_oid) == (
            other.system_identifier,
            other.timeline,
            other.table_oid,
        )


@dataclass(frozen=True, slots=True)
class Page:
    """A poll that was only partly published: rows visible at ``horizon`` up to ``after`` are in the topic.

    ``after`` is (phase, timestamp, id) in the text form of Postgres, None for NULL.
    """

    horizon: Horizon
    after: tuple[int, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """What the topic holds of a table.

    ``horizon`` None means that a first load, or a full one, is not finished. ``durable`` is the newest horizon that
    a crash of the server can't take back (its WAL was flushed). ``pages`` are parts of polls after ``horizon``.
    ``sweep`` says that keys which the table lacks are still to be removed from the topic. ``shape`` is a digest of the
    columns and triggers that the table had. ``topic`` is the name and id of the topic that all of this is about.
    ``partitions`` are the oids of the leaves of a partitioned table, ``fresh`` those of which every row is still to be
    sent: an attached partition brings rows that are older than any snapshot.
    """

    identity: Identity
    topic: tuple[str, str | None] | None = None
    shape: str | None = None
    horizon: Horizon | None = None
    durable: Horizon | None = None
    pages: tuple[Page, ...] = ()
    sweep: bool = False
    partitions: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    timestamp: int | None = None
    timestamp_nanos: int | None = None
    incrementing: int | None = None

    def on(self, identity: Identity, snapshot: Snapshot) -> SourceOffset:
        """Adapt to the server that ``identity`` and ``snapshot`` were read from.

        A restarted server may have lost transaction ids that were never flushed: back to the durable horizon. Another
        history, or a counter that runs behind the stored one: nothing is trusted, every row is sent again.
        """
        behind = self.horizon is not None and snapshot.xmax < self.horizon.snapshot.xmax
        if identity == self.identity and not behind:
            return self
        trusted = self.durable if identity.same_history(self.identity) else None
        if trusted is not None and snapshot.xmax >= trusted.snapshot.xmax:
            return replace(self, identity=identity, horizon=trusted, pages=())
        return replace(self, identity=identity, horizon=None, durable=None, pages=(), sweep=True)

    def under(self, shape: str) -> SourceOffset:
        """Adapt to the table's shape now.

        Where it is another one, rows may have been written without a stamp: until the next horizon ``xmin`` decides.
        """
        if shape == self.shape:
            return self
        pages = tuple(Page(_unstamped(page.horizon), page.after) for page in self.pages)
        horizon, durable = (_unstamped(known) if known else None for known in (self.horizon, self.durable))
        return replace(self, shape=shape, horizon=horizon, durable=durable, pages=pages)

    def within(self, partitions: tuple[int, ...]) -> SourceOffset:
        """Adapt to the partitions that the table has now: new ones are sent whole, keys of lost ones are swept."""
        if self.horizon is None:
            return replace(self, partitions=partitions, fresh=())
        came = {*self.fresh, *partitions} - ({*self.partitions} - {*self.fresh})
        fresh = tuple(oid for oid in partitions if oid in came)
        return replace(
            self, partitions=partitions, fresh=fresh, sweep=self.sweep or not {*self.partitions} <= {*partitions}
        )

    def dumps(self) -> bytes:
        """The JSON value for the offsets topic."""
        share = SEEN_LIMIT // (2 + len(self.pages))
        value: dict[str, Any] = {
            "timestamp": self.timestamp,
            "timestamp_nanos": self.timestamp_nanos,
            "incrementing": self.incrementing,
            **_horizon_fields(self.horizon, share),
            "system_identifier": self.identity.system_identifier,
            "timeline": self.identity.timeline,
            "postmaster_start": self.identity.postmaster_start,
            "statistics_start": self.identity.statistics_start,
            "table_oid": self.identity.table_oid,
            "topic": self.topic,
            "shape": self.shape,
            "durable": _horizon_fields(self.durable, share),
            "pages": [{**_horizon_fields(page.horizon, share), "after": page.after} for page in self.pages],
            "sweep": self.sweep,
            "partitions": self.partitions,
            "fresh": self.fresh,
        }
        return orjson.dumps(value)

    @classmethod
    def loads(cls, raw: bytes) -> SourceOffset:
        """Read :meth:`dumps`. Raises ValueError when it is something else."""
        try:
            return cls._read(orjson.loads(raw))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _read(cls, value: dict[str, Any]) -> SourceOffset:
        return cls(
            identity=Identity(
                system_identifier=value["system_identifier"],
                timeline=value["timeline"],
                postmaster_start=value["postmaster_start"],
                statistics_start=value["statistics_start"],
                table_oid=value["table_oid"],
            ),
            topic=_topic(value["topic"]),
            shape=value["shape"],
            horizon=_horizon(value),
            durable=_horizon(value["durable"]),
            pages=tuple(_page(page) for page in value["pages"]),
            sweep=value["sweep"],
            partitions=tuple(map(int, value["partitions"])),
            fresh=tuple(map(int, value["fresh"])),
            timestamp=value["timestamp"],
            timestamp_nanos=value["timestamp_nanos"],
            incrementing=value["incrementing"],
        )


def offset_key(connector: str, database: str, schema: str, table: str) -> bytes:
    """The key of a table's offset record."""
    return orjson.dumps([connector, {"protocol": "1", "table": f"{database}.{schema}.{table}"}])


def sharing(topic: str, table: bytes, offsets: Mapping[bytes, bytes]) -> list[str]:
    """Other tables than that of the key ``table`` which are published to the topic, by all values of the offsets topic.

    The same table under another connector's name is no other table: the connector was renamed. What can't be read
    belongs to somebody else.
    """
    found: set[str] = set()
    for key, value in offsets.items():
        with suppress(ValueError, TypeError, KeyError, IndexError):
            name = orjson.loads(key)[1]["table"]
            if name != orjson.loads(table)[1]["table"] and orjson.loads(value)["topic"][0] == topic:
                found.add(str(name))
    return sorted(found)


def _unstamped(horizon: Horizon) -> Horizon:
    return Horizon(horizon.snapshot, horizon.seen or frozenset())


def _topic(value: list[str] | None) -> tuple[str, str | None] | None:
    if value is None:
        return None
    name, topic_id = value
    return name, topic_id


def _horizon_fields(horizon: Horizon | None, limit: int) -> dict[str, Any]:
    if horizon is None:
        return {"snapshot": None}
    if horizon.seen is None:
        return {"snapshot": str(horizon.snapshot)}
    return {"snapshot": str(horizon.snapshot), "seen": sorted(horizon.seen) if len(horizon.seen) <= limit else []}


def _horizon(value: dict[str, Any]) -> Horizon | None:
    if value.get("snapshot") is None:
        return None
    return Horizon(Snapshot.parse(value["snapshot"]), frozenset(map(int, value["seen"])) if "seen" in value else None)


def _page(value: dict[str, Any]) -> Page:
    horizon = _horizon(value)
    if horizon is None:
        raise ValueError("a page without its snapshot")
    phase, timestamp, number = value["after"]
    return Page(horizon, (phase, timestamp, number))

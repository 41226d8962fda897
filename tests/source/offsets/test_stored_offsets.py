"""What the stored offsets of all connectors say of a topic."""

from __future__ import annotations

from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.offset_parts import Identity
from compactory_connectors.source.offsets.stored_offsets import StoredOffset, sharing

NOWHERE = Identity(system_identifier="", timeline=0, postmaster_start="", statistics_start="", table_oid=0)


def _stored(connector: str, table: str, topic: str | None) -> StoredOffset:
    offset = SourceOffset(identity=NOWHERE, topic=None if topic is None else (topic, "id"))
    return StoredOffset(key=b"", connector=connector, table=table, written_at=0, value=offset.dumps(), offset=offset)


def _unreadable(table: str, value: bytes | None) -> StoredOffset:
    return StoredOffset(key=b"", connector="c", table=table, written_at=0, value=value, problem="a newer version")


def test_tables_that_share_a_topic() -> None:
    """Guarantee 13: a sweep leaves keys that may be another table's, even if that table's offset can't be read."""
    offsets = [
        _stored("c", "db.s.own", "t"),
        _stored("renamed", "db.s.own", "t"),
        _stored("c", "db.s.neighbour", "t"),
        _stored("c", "db.s.elsewhere", "u"),
        _stored("c", "db.s.unset", None),
        _stored("c", "query", "t"),
        _unreadable("db.s.newer", b'{"topic":["t","id"],"snapshot":7}'),
        _unreadable("db.s.damaged", b"\xff"),
        _unreadable("db.s.reset", None),
    ]
    assert sharing("t", "db.s.own", offsets) == ["db.s.neighbour", "db.s.newer"]

"""The source offsets of Kafka Connect's JDBC source connector, read from its workers' topic.

A distributed worker keeps them in a compacted topic (``offset.storage.topic``). A key is
``["<connector>",{"protocol":"1","table":"<db>.<schema>.<table>"}]``; older ones lack ``protocol`` and name the table
alone, a query's is ``{"query":"query"}``. A null value means that the offset was reset.
Source: kafka-connect-jdbc's ``OffsetProtocols`` and ``TimestampIncrementingOffset``, Kafka's ``OffsetStorageWriter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.connect.setting import nearest
from compactory_connectors.kafka.topic_reader import newest_records

from ..offsets.offset_parts import Cursor

__all__ = ["ConnectOffset", "connector_offsets", "find_offset", "read_topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOffset:
    """The offset at which Kafka Connect stopped.

    ``table`` is the name in the key, None for a query. ``cursor`` is None after a reset. ``problem`` is the reason why
    the value can't be read.
    """

    key: bytes
    connector: str
    table: str | None
    protocol: str | None = None
    cursor: Cursor | None = None
    problem: str | None = None


def read_topic(kafka: Kafka, topic: str) -> dict[bytes, bytes | None]:
    """Return the newest value of every key. Raises ConfigError if the topic does not exist, and Unreachable."""
    newest = newest_records(kafka, topic).items()
    return {key: value if isinstance(value := message.value(), bytes) else None for key, message in newest}


def connector_offsets(stored: Mapping[bytes, bytes | None], connector: str, where: str) -> list[ConnectOffset]:
    """Return the offsets of one connector. Raises ConfigError, with the nearest name, if there are none."""
    parsed = [offset for key, value in stored.items() if (offset := _parse(key, value)) is not None]
    offsets = [offset for offset in parsed if offset.connector == connector]
    if not offsets:
        names = sorted({offset.connector for offset in parsed})
        listed = f"; it has those of {', '.join(names[:10])}" if names else "; it has none of the JDBC source connector"
        raise ConfigError(
            f"{where} has no offsets of a connector {connector!r}{nearest(connector, names)}{listed};"
            " --connect-name gives its name in Kafka Connect"
        )
    return offsets


def find_offset(offsets: Iterable[ConnectOffset], table: tuple[str, str, str] | None) -> ConnectOffset | None:
    """Return the offset of ``(database, schema, table)``, with None that of the query.

    As in Connect, the newer form of a key comes first. Older drivers give no database, older connectors no schema.
    """
    if table is None:
        return next((offset for offset in offsets if offset.table is None), None)
    by_name = {offset.table: offset for offset in sorted(offsets, key=lambda offset: offset.protocol or "")}
    names = [".".join(table[start:]) for start in range(3)]
    candidates = [by_name[name] for name in names if name in by_name]
    # An update of the connector changes the form of its keys and leaves the records with the previous form as they are.
    newer_form = [offset for offset in candidates if offset.protocol is not None]
    return max(newer_form or candidates, key=_progress, default=None)


def _progress(offset: ConnectOffset) -> tuple[tuple[bool, int], ...]:
    cursor = offset.cursor
    fields = (cursor.timestamp, cursor.timestamp_nanos, cursor.incrementing) if cursor is not None else (None,)
    return tuple((field is not None, field or 0) for field in fields)


def _parse(key: bytes, value: bytes | None) -> ConnectOffset | None:
    """Return an offset of the JDBC source connector, None for a record of another connector."""
    try:
        connector, partition = _payload(orjson.loads(key))
        table = partition.get("table")
        if not isinstance(connector, str) or not (isinstance(table, str) or "query" in partition):
            return None
        protocol = partition.get("protocol")
    except (ValueError, TypeError, AttributeError):
        return None
    try:
        cursor, problem = _cursor(value), None
    except (ValueError, TypeError, AttributeError) as error:
        cursor, problem = None, f"its value is not an offset: {error}"
    return ConnectOffset(key=key, connector=connector, table=table, protocol=protocol, cursor=cursor, problem=problem)


def _payload(document: Any) -> Any:
    """Return the content without the envelope that a converter with schemas adds."""
    return document["payload"] if isinstance(document, dict) and "payload" in document else document


def _cursor(value: bytes | None) -> Cursor | None:
    fields = _payload(orjson.loads(value)) if value is not None else None
    if fields is None:
        return None
    cursor = Cursor.from_fields(fields)
    if cursor.is_empty:
        raise ValueError("it has neither timestamp nor incrementing")
    return cursor

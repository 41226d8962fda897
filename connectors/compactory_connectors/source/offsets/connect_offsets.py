"""The source offsets of Kafka Connect's JDBC source connector: read from where a worker left them, and written back.

A distributed worker keeps them in a compacted topic (``offset.storage.topic``), a standalone one in a file. A key is
``["<connector>",{"protocol":"1","table":"<db>.<schema>.<table>"}]``; older ones lack ``protocol`` and name the table
alone, a query's is ``{"query":"query"}``. A null value means that the offset was reset.
Source: kafka-connect-jdbc's ``OffsetProtocols`` and ``TimestampIncrementingOffset``, Kafka's ``OffsetStorageWriter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka.admin import AdminClient

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka, kafka_errors

from ..cursor.offset import Cursor
from ..publish.topics import read
from ..setting import nearest
from .java_map import read_byte_map

__all__ = [
    "ConnectOffset",
    "connect_keys",
    "connect_value",
    "connector_offsets",
    "find_offset",
    "live_workers",
    "read_file",
    "read_topic",
]

_PATIENCE = 10.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOffset:
    """Where Kafka Connect stopped. ``table`` is the name in the key, None for a query; ``cursor`` None: reset.

    ``problem`` says why the value can't be read.
    """

    key: bytes
    connector: str
    table: str | None
    protocol: str | None = None
    cursor: Cursor | None = None
    problem: str | None = None


def read_topic(kafka: Kafka, topic: str) -> dict[bytes, bytes | None]:
    """The newest value of every key. Raises ConfigError when there is no such topic, and Unreachable.

    Where several partitions have a key (somebody made more of them), the record with the newest timestamp counts.
    """
    found: dict[bytes, tuple[tuple[int, int], bytes | None]] = {}
    for message in read(kafka, topic):
        key, value = message.key(), message.value()
        age = (message.timestamp()[1], message.offset() or 0)
        if isinstance(key, bytes) and (key not in found or age >= found[key][0]):
            found[key] = (age, value if isinstance(value, bytes) else None)
    return {key: value for key, (_, value) in found.items()}


def read_file(path: Path) -> dict[bytes, bytes | None]:
    """The entries of a standalone worker's ``offset.storage.file.filename``. Raises ConfigError."""
    try:
        return read_byte_map(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def connector_offsets(stored: Mapping[bytes, bytes | None], connector: str, place: str) -> list[ConnectOffset]:
    """The offsets of one connector. Raises ConfigError, with the nearest name, when there are none."""
    parsed = [offset for key, value in stored.items() if (offset := _parse(key, value)) is not None]
    found = [offset for offset in parsed if offset.connector == connector]
    if not found:
        names = sorted({offset.connector for offset in parsed})
        listed = f"; it has those of {', '.join(names[:10])}" if names else "; it has none of the JDBC source connector"
        raise ConfigError(
            f"{place} has no offsets of a connector {connector!r}{nearest(connector, names)}{listed};"
            " --connect-name gives its name in Kafka Connect"
        )
    return found


def find_offset(offsets: Iterable[ConnectOffset], table: tuple[str, str, str] | None) -> ConnectOffset | None:
    """The offset of ``(database, schema, table)``, or of the query where that is None.

    As in Connect, the newer form of a key comes first. Older drivers give no database, older connectors no schema.
    """
    if table is None:
        return next((offset for offset in offsets if offset.table is None), None)
    by_name = {offset.table: offset for offset in sorted(offsets, key=lambda offset: offset.protocol or "")}
    names = [".".join(table[start:]) for start in range(3)]
    found = [by_name[name] for name in names if name in by_name]
    # An update of the connector changes the form of its keys, and leaves those of the other one as they were.
    newer = [offset for offset in found if offset.protocol is not None]
    return max(newer or found, key=_progress, default=None)


def _progress(offset: ConnectOffset) -> tuple[tuple[bool, int], ...]:
    cursor = offset.cursor
    fields = (cursor.timestamp, cursor.timestamp_nanos, cursor.incrementing) if cursor is not None else (None,)
    return tuple((field is not None, field or 0) for field in fields)


def live_workers(kafka: Kafka, group: str) -> int:
    """How many workers of a distributed Kafka Connect are alive, by their ``group.id``.

    Raises Unreachable and ConfigError.
    """
    with kafka_errors(f"describe group {group!r}", kafka.bootstrap):
        client = AdminClient(kafka.properties())
        described = client.describe_consumer_groups([group], request_timeout=_PATIENCE)
        return len(described[group].result(_PATIENCE).members)


def connect_keys(connector: str, table: tuple[str, str, str] | None) -> list[bytes]:
    """The keys under which Kafka Connect may look for an offset.

    Of a table with its database by pgjdbc 42.7.5 and later, without it by older ones and from version 10.9.5 of the
    connector on.
    """
    if table is None:
        return [orjson.dumps([connector, {"query": "query"}])]
    names = (".".join(table), ".".join(table[1:]))
    return [orjson.dumps([connector, {"protocol": "1", "table": name}]) for name in names]


def connect_value(cursor: Cursor) -> bytes:
    """The value that Kafka Connect goes on from."""
    value: dict[str, int] = {}
    if cursor.timestamp is not None:
        value["timestamp_nanos"] = cursor.timestamp_nanos or cursor.timestamp % 1000 * 1_000_000
    if cursor.incrementing is not None:
        value["incrementing"] = cursor.incrementing
    if cursor.timestamp is not None:
        value["timestamp"] = cursor.timestamp
    return orjson.dumps(value)


def _parse(key: bytes, value: bytes | None) -> ConnectOffset | None:
    """An offset of the JDBC source connector, or None for what other connectors keep."""
    try:
        connector, partition = _payload(orjson.loads(key))
        named = partition.get("table")
        if not isinstance(connector, str) or not (isinstance(named, str) or "query" in partition):
            return None
        protocol = partition.get("protocol")
    except (ValueError, TypeError, AttributeError):
        return None
    try:
        cursor, problem = _cursor(value), None
    except (ValueError, TypeError, AttributeError) as error:
        cursor, problem = None, f"its value is no offset: {error}"
    return ConnectOffset(key=key, connector=connector, table=named, protocol=protocol, cursor=cursor, problem=problem)


def _payload(document: Any) -> Any:
    """What a converter with schemas put into an envelope."""
    return document["payload"] if isinstance(document, dict) and "payload" in document else document


def _cursor(value: bytes | None) -> Cursor | None:
    fields = _payload(orjson.loads(value)) if value is not None else None
    if fields is None:
        return None
    numbers = {name: fields.get(name) for name in ("timestamp", "timestamp_nanos", "incrementing")}
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise ValueError(f"{name} is not a whole number")
    if numbers["timestamp"] is None and numbers["incrementing"] is None:
        raise ValueError("it has neither timestamp nor incrementing")
    return Cursor(**numbers)

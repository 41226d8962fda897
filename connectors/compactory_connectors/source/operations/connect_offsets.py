"""The source offsets of Kafka Connect's JDBC source connector: read from its workers' topic, and written back.

The way back loses nothing: Connect goes on from a timestamp and an id, and a source of ours has published at least all
rows up to them.

A distributed worker keeps them in a compacted topic (``offset.storage.topic``). A key is
``["<connector>",{"protocol":"1","table":"<db>.<schema>.<table>"}]``; older ones lack ``protocol`` and name the table
alone, a query's is ``{"query":"query"}``. A null value means that the offset was reset.
Source: kafka-connect-jdbc's ``OffsetProtocols`` and ``TimestampIncrementingOffset``, Kafka's ``OffsetStorageWriter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka.admin import AdminClient

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka, kafka_errors
from compactory_connectors.connect.setting import nearest
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import read

from ..offsets.cursor import Cursor
from ..offsets.offset_keys import offset_key, query_key
from ..offsets.stored_offsets import StoredOffset

__all__ = [
    "ConnectOffset",
    "Exported",
    "connect_keys",
    "connect_value",
    "connector_offsets",
    "export_offsets",
    "find_offset",
    "live_workers",
    "read_topic",
    "write_offsets",
]

_PATIENCE = 10.0  # seconds for an answer
_DELIVERY = 30.0  # seconds


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One offset as Kafka Connect stores it."""

    table: str
    key: bytes
    value: bytes

    @property
    def partition(self) -> Any:
        """Connect's ``partition``, as its REST interface names it."""
        return orjson.loads(self.key)[1]

    @property
    def offset(self) -> Any:
        """Connect's ``offset``."""
        return orjson.loads(self.value)


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
        return [query_key(connector)]
    return [offset_key(connector, *names) for names in (table, table[1:])]


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


def export_offsets(kafka: Kafka, stored: Iterable[StoredOffset], connector: str, topic: str | None) -> list[Exported]:
    """The offsets of a connector under ``connector``, its name in Kafka Connect.

    Keys that ``topic`` has of it are used again: their form depends on the version of the connector and its driver.
    Where none is known every form is given; a task takes the one that it looks for. Raises
    ConfigError for a table whose first load is not finished, and when there is nothing to export.
    """
    known = _known(kafka, connector, topic)
    exported: list[Exported] = []
    problems: list[str] = []
    for item in stored:
        if item.offset is None or item.offset.cursor.empty:
            problems.append(f"table {item.table}: it has no timestamp and no id to go on from")
            continue
        table = None if item.table == "query" else _names(item.table)
        found = find_offset(known, table)
        keys = [found.key] if found is not None else connect_keys(connector, table)
        value = connect_value(item.offset.cursor)
        exported += [Exported(table=item.table, key=key, value=value) for key in keys]
    if problems or not exported:
        raise ConfigError(problems or "there is nothing to export: no offset is stored")
    return exported


def write_offsets(kafka: Kafka, topic: str, offsets: Sequence[Exported]) -> None:
    """Write them into the workers' topic. Raises ConfigError when it does not exist, and Unreachable."""
    if topic not in kafka.topics([topic]):
        raise ConfigError(f"topic {topic!r} does not exist; it is offset.storage.topic of the Connect workers")
    with closing(Publisher(kafka, "offsets", topic, transactions=False, timeout=_DELIVERY)) as publisher:
        publisher.amend([(item.key, item.value, []) for item in offsets])


def _known(kafka: Kafka, connector: str, topic: str | None) -> list[Any]:
    if topic is None or topic not in kafka.topics([topic]):
        return []
    try:
        return list(connector_offsets(read_topic(kafka, topic), connector, f"topic {topic!r}"))
    except ConfigError:
        return []  # Connect never had it


def _names(table: str) -> tuple[str, str, str]:
    database, schema, name = table.split(".", 2)
    return database, schema, name


def _parse(key: bytes, value: bytes | None) -> ConnectOffset | None:
    """An offset of the JDBC source connector, or None for a record of another connector."""
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
        cursor, problem = None, f"its value is not an offset: {error}"
    return ConnectOffset(key=key, connector=connector, table=named, protocol=protocol, cursor=cursor, problem=problem)


def _payload(document: Any) -> Any:
    """The content of the envelope that a converter with schemas adds."""
    return document["payload"] if isinstance(document, dict) and "payload" in document else document


def _cursor(value: bytes | None) -> Cursor | None:
    fields = _payload(orjson.loads(value)) if value is not None else None
    if fields is None:
        return None
    cursor = Cursor.read(fields)
    if cursor.empty:
        raise ValueError("it has neither timestamp nor incrementing")
    return cursor

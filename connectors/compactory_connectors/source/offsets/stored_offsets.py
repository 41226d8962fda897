"""The records of the offsets topic: offsets by connector and table, and the state that an operator wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka, Message
from compactory_connectors.connect.setting import nearest
from compactory_connectors.kafka.topic_reader import newest_records

from ..config.connector import ConnectorConfig
from .offset import SourceOffset
from .offset_parts import Edit
from .topics import OFFSETS_TOPIC, ensure_topics, publisher_of, stored_values

__all__ = [
    "StoredOffset",
    "Target",
    "TargetState",
    "connectors_like",
    "matching_tables",
    "read_offsets",
    "read_target_state",
    "sharing",
    "stored_edits",
    "target_key",
    "write_target_state",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """The newest record of a key. ``table`` is ``db.schema.table``, or ``query`` for a connector with a query.

    ``offset`` None: it was reset, or ``problem`` says why it can't be read. ``written_at`` is in seconds since 1970, by
    Kafka's clock.
    """

    key: bytes
    connector: str
    table: str
    written_at: float
    value: bytes | None = None
    offset: SourceOffset | None = None
    problem: str | None = None
    reset: Edit | None = None

    @property
    def topic(self) -> str | None:
        """The topic of the offset, if the value names it; also from a value that can't be read otherwise."""
        if self.offset is not None:
            return self.offset.topic[0] if self.offset.topic is not None else None
        with suppress(ValueError, TypeError, KeyError, IndexError):
            return str(orjson.loads(self.value or b"")["topic"][0])
        return None


def read_offsets(kafka: Kafka) -> list[StoredOffset]:
    """Return every connector's offsets, sorted; none without an offsets topic. Other records are ignored.

    Raises Unreachable, and ConfigError if the cluster refuses access.
    """
    if OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return []
    newest = newest_records(kafka, OFFSETS_TOPIC).items()
    offsets = [stored for key, message in newest if (stored := _stored(key, message)) is not None]
    return sorted(offsets, key=lambda stored: (stored.connector, stored.table))


def stored_edits(kafka: Kafka, connector: str) -> set[Edit]:
    """Return the edits by hand after which no source has published. Raises as :func:`read_offsets` does."""
    if OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return set()
    newest = newest_records(kafka, OFFSETS_TOPIC).items()
    records = [
        message for key, message in newest if (stored := _stored(key, message)) and stored.connector == connector
    ]
    return {edit for message in records if (edit := _edit_of(message)) is not None}


def sharing(topic: str, table: str, offsets: Iterable[StoredOffset]) -> list[str]:
    """Return the other tables than ``table`` (``db.schema.table``) that are published to the topic.

    The same table of another connector does not count: the connector was renamed.
    """
    return sorted({stored.table for stored in offsets if stored.topic == topic} - {table, "query"})


def connectors_like(name: str, offsets: Iterable[StoredOffset]) -> str:
    """Return ``; did you mean X?`` for a connector that has offsets, or nothing."""
    return nearest(name, {stored.connector for stored in offsets if stored.value is not None} - {name})


def matching_tables(tables: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the ``tables`` (``db.schema.table``) named by ``table``, ``schema.table`` or the full name.

    Without names, return all. Raises ConfigError for a name that fits none, or several.
    """
    if not names:
        return list(tables)
    problems: list[str] = []
    matches: list[str] = []
    for name in names:
        fits = [table for table in tables if table == name or table.endswith(f".{name}")]
        if len(fits) > 1:
            problems.append(f"--table {name}: fits {', '.join(fits)}; give its schema as well")
        elif not fits:
            suffixes = {".".join(table.split(".")[start:]) for table in tables for start in range(3)}
            listed = f"; there are {', '.join(tables)}" if tables else "; there are no tables"
            problems.append(f"--table {name}: not a table of this connector{nearest(name, suffixes)}{listed}")
        matches += fits
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(matches))


def _stored(key: bytes, message: Message) -> StoredOffset | None:
    try:
        connector, partition = orjson.loads(key)
        table = partition.get("table") or ("query" if "query" in partition else None)
    except (ValueError, TypeError, AttributeError):
        return None
    if not isinstance(connector, str) or not isinstance(table, str):
        return None
    value = message.value()
    value = value if isinstance(value, bytes) else None
    common: dict[str, Any] = {"key": key, "connector": connector, "table": table, "value": value}
    common["written_at"] = message.timestamp()[1] / 1000
    if value is None:
        return StoredOffset(**common, reset=_edit_of(message))
    try:
        return StoredOffset(**common, offset=SourceOffset.loads(value))
    except ValueError as error:
        return StoredOffset(**common, problem=str(error))


def _edit_of(message: Message) -> Edit | None:
    headers = dict(message.headers() or ())
    texts = {name: raw.decode(errors="replace") for name, raw in headers.items() if isinstance(raw, bytes)}
    if not {"edited_by", "edited_at", "edited"} <= texts.keys():
        return None
    return Edit(texts["edited_by"], texts["edited_at"], texts["edited"])


class Target(Enum):
    """The state in which an operator wants a connector."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A target, and its time (seconds since 1970, by the clock of the process that took the order)."""

    target: Target = Target.RUNNING
    since: float | None = None

    @property
    def is_paused(self) -> bool:
        return self.target is Target.PAUSED

    def dumps(self) -> bytes | None:
        """Return the record's value; None is a tombstone."""
        return orjson.dumps({"target": self.target.value, "since": self.since}) if self.is_paused else None

    @classmethod
    def loads(cls, value: bytes | None) -> TargetState:
        """Read a record's value. One of a newer version means a pause: that loses nothing."""
        if value is None:
            return cls()
        try:
            fields = orjson.loads(value)
            return cls(target=Target(fields["target"]), since=float(fields["since"]))
        except (ValueError, TypeError, KeyError):
            return cls(target=Target.PAUSED)


def target_key(connector: str) -> bytes:
    """Return the key of a connector's record."""
    return orjson.dumps([connector, {"protocol": "1", "state": "target"}])


def read_target_state(kafka: Kafka, connector: str) -> TargetState:
    """Return the stored target. Raises Unreachable, and ConfigError if the cluster refuses access."""
    if OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return TargetState()
    return TargetState.loads(stored_values(kafka).get(target_key(connector)))


def write_target_state(
    connector: ConnectorConfig, kafka: Kafka, target_state: TargetState, *, create: bool = True
) -> None:
    """Store a target under the connector's transactional id, which fences: only for the publisher, between sessions.

    Raises LeaseLost, Unreachable, ConfigError.
    """
    ensure_topics(kafka, {}, create=create)
    with closing(publisher_of(connector, kafka)) as publisher:
        publisher.open()
        publisher.amend([(target_key(connector.name), target_state.dumps(), [])])

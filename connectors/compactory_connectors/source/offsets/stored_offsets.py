"""The stored offsets of all connectors, table by table. `publisher` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka, Message
from compactory_connectors.connect.setting import nearest
from compactory_connectors.kafka.topic_reader import newest_records

from .offset import SourceOffset
from .offset_parts import Edit
from .topics import OFFSETS_TOPIC

__all__ = ["StoredOffset", "connectors_like", "matching_tables", "read_offsets", "sharing", "stored_edits"]


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

"""Operators' functions about processors: list, retry and drop failed events; pause and resume.

They write to the topic that the running processors read. Each act is one transaction with its line of the operator log,
which is in the same topic; ``by`` is who acts, by default the user of the process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import orjson

from compactory.errors import ConfigError, OrderRefused
from compactory.kafka.client import Kafka, Producer
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.postgres.operator_log import LogLine, person

from .membership import StoredEvents
from .pending import LARGEST, LOG_PREFIX, PAUSED, StoredEvent, group_of

__all__ = ["drop", "operator_log", "pause", "resume", "retry", "stored_events"]

_KEPT = timedelta(days=90)  # lines of the operator log

_Records = Mapping[str, StoredEvent | Mapping[str, Any]]


def stored_events(kafka: Kafka, name: str) -> list[StoredEvent]:
    """Return the unfinished events of a processor, oldest first. Raises ConfigError if it has never run."""
    return _events(_records(kafka, name))


def operator_log(kafka: Kafka, name: str, limit: int = 100) -> list[LogLine]:
    """Return the newest lines of a processor's operator log. Raises ConfigError if it has never run."""
    return sorted(_lines(_records(kafka, name)).values(), key=lambda line: line.at, reverse=True)[:limit]


def retry(kafka: Kafka, name: str, events: Iterable[str] = (), *, by: str | None = None) -> int:
    """Retry failed events, all or those with these ids. Return their number. Raises OrderRefused for other ids."""
    return _change(
        kafka, name, events, "retry", by,
        lambda stored: replace(stored, state="waiting", attempts=0, due=time.time()).data(),
    )  # fmt: skip


def drop(kafka: Kafka, name: str, events: Iterable[str] = (), *, by: str | None = None) -> int:
    """Delete failed events, all or those with these ids. Return their number. Raises OrderRefused for other ids."""
    return _change(kafka, name, events, "drop", by, lambda _stored: None)


def pause(kafka: Kafka, name: str, *, by: str | None = None) -> bool:
    """Pause a processor: within a second its processes call the function no more. They keep their partitions.

    Return False if it was paused before. Raises ConfigError if it has never run.
    """
    since = orjson.dumps({"since": datetime.now(UTC), "by": person(by)})
    return _set_paused(kafka, name, "pause", since, by)


def resume(kafka: Kafka, name: str, *, by: str | None = None) -> bool:
    """Resume a processor. Return False if it was not paused. Raises as `pause` does."""
    return _set_paused(kafka, name, "resume", None, by)


def _set_paused(kafka: Kafka, name: str, action: str, value: bytes | None, by: str | None) -> bool:
    records = _records(kafka, name)
    has_changed = (PAUSED in records) is (value is None)
    if has_changed:
        _write(kafka, name, records, [(PAUSED, value)], action, {"processor": name}, by)
    return has_changed


def _change(
    kafka: Kafka,
    name: str,
    events: Iterable[str],
    action: str,
    by: str | None,
    value: Callable[[StoredEvent], bytes | None],
) -> int:
    ids, records = set(events), _records(kafka, name)
    failed = [stored for stored in _events(records) if stored.state == "failed"]
    if unknown := ids - {stored.id for stored in failed}:
        raise OrderRefused(
            f"not set aside: event {', '.join(sorted(unknown))}; nothing was changed: compactory process failed {name}"
            " lists those that are"
        )
    changes = [(stored.id, value(stored)) for stored in failed if not ids or stored.id in ids]
    target = {"processor": name} | ({"ids": sorted(ids)} if ids else {})
    if changes:
        _write(kafka, name, records, changes, action, target, by)
    return len(changes)


def _write(
    kafka: Kafka,
    name: str,
    records: _Records,
    changes: Sequence[tuple[str, bytes | None]],
    action: str,
    target: Mapping[str, Any],
    by: str | None,
) -> None:
    """Write records and the line of the act in one transaction, and delete old lines."""
    clock, topic = datetime.now(UTC), group_of(name)
    actor = f"{person(by)} ({person(None)}@{socket.gethostname()})"
    line = LogLine(at=clock, who=actor, part="processors", action=action, object=target, count=len(changes))
    expired = [key for key, old in _lines(records).items() if old.at < clock - _KEPT]
    lines = [(f"{LOG_PREFIX}{uuid4().hex}", orjson.dumps(asdict(line))), *((key, None) for key in expired)]

    def send(producer: Producer) -> None:
        for key, value in (*changes, *lines):
            producer.produce(topic, value, key)

    own_id = f"process-{name}-operator-{uuid4().hex[:12]}"
    with closing(Publisher(kafka, own_id, topic, overrides={"message.max.bytes": LARGEST})) as publisher:
        publisher.open()
        publisher.transact(send)


def _records(kafka: Kafka, name: str) -> _Records:
    if not kafka.topics([group_of(name)]):
        raise ConfigError(
            f"no processor {name!r} has run on Kafka at {kafka.bootstrap}: it has no topic {group_of(name)!r}"
        )
    with closing(StoredEvents(kafka, name)) as stored:
        stored.start()
        return stored.records()


def _events(records: _Records) -> list[StoredEvent]:
    """Return the stored events, oldest first."""
    events = [record for record in records.values() if isinstance(record, StoredEvent)]
    return sorted(events, key=lambda stored: (stored.timestamp_ms, stored.place, stored.offset))


def _lines(records: _Records) -> dict[str, LogLine]:
    """Return the lines of the operator log by the keys of their records."""
    return {
        key: LogLine(**{**record, "at": datetime.fromisoformat(record["at"])})
        for key, record in records.items()
        if key.startswith(LOG_PREFIX) and isinstance(record, Mapping)
    }

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

    def waiting(stored: StoredEvent) -> bytes:
        return replace(stored, state="waiting", attempts=0, due=time.time()).data()

    return _Act(kafka, name, "retry", by).change_failed(events, waiting)


def drop(kafka: Kafka, name: str, events: Iterable[str] = (), *, by: str | None = None) -> int:
    """Delete failed events, all or those with these ids. Return their number. Raises OrderRefused for other ids."""
    return _Act(kafka, name, "drop", by).change_failed(events, lambda _stored: None)


def pause(kafka: Kafka, name: str, *, by: str | None = None) -> bool:
    """Pause a processor: within a second its processes call the function no more. They keep their partitions.

    Return False if it was paused before. Raises ConfigError if it has never run.
    """
    since = orjson.dumps({"since": datetime.now(UTC), "by": person(by)})
    return _Act(kafka, name, "pause", by).set_pause(since)


def resume(kafka: Kafka, name: str, *, by: str | None = None) -> bool:
    """Resume a processor. Return False if it was not paused. Raises as `pause` does."""
    return _Act(kafka, name, "resume", by).set_pause(None)


class _Act:
    """A change that an operator makes to the topic of a processor. Raises ConfigError if the processor never ran."""

    def __init__(self, kafka: Kafka, name: str, action: str, by: str | None) -> None:
        self._kafka = kafka
        self._name = name
        self._action = action
        self._by = by
        self._records = _records(kafka, name)

    def set_pause(self, value: bytes | None) -> bool:
        """Write the record of a pause, or remove it with None. Return False if nothing has changed."""
        has_changed = (PAUSED in self._records) is (value is None)
        if has_changed:
            self._write([(PAUSED, value)])
        return has_changed

    def change_failed(self, events: Iterable[str], value: Callable[[StoredEvent], bytes | None]) -> int:
        """Write the new values of failed events, all or those with these ids; return their number."""
        ids = set(events)
        failed = [stored for stored in _events(self._records) if stored.state == "failed"]
        if unknown := ids - {stored.id for stored in failed}:
            raise OrderRefused(
                f"not set aside: event {', '.join(sorted(unknown))}; nothing was changed: compactory process failed"
                f" {self._name} lists those that are"
            )
        changes = [(stored.id, value(stored)) for stored in failed if not ids or stored.id in ids]
        if changes:
            self._write(changes, sorted(ids))
        return len(changes)

    def _write(self, changes: Sequence[tuple[str, bytes | None]], ids: Sequence[str] = ()) -> None:
        """Write records and the line of the act in one transaction, and delete old lines."""
        clock, topic = datetime.now(UTC), group_of(self._name)
        actor = f"{person(self._by)} ({person(None)}@{socket.gethostname()})"
        target = {"processor": self._name} | ({"ids": ids} if ids else {})
        line = LogLine(at=clock, who=actor, part="processors", action=self._action, object=target, count=len(changes))
        expired = [key for key, old in _lines(self._records).items() if old.at < clock - _KEPT]
        lines = [(f"{LOG_PREFIX}{uuid4().hex}", orjson.dumps(asdict(line))), *((key, None) for key in expired)]

        def send(producer: Producer) -> None:
            for key, value in (*changes, *lines):
                producer.produce(topic, value, key)

        own_id = f"process-{self._name}-operator-{uuid4().hex[:12]}"
        with closing(Publisher(self._kafka, own_id, topic, overrides={"message.max.bytes": LARGEST})) as publisher:
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

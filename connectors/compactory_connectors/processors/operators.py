"""Operators' functions about failed events: they write to the topic that the running processors read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace

from compactory.errors import ConfigError, OrderRefused
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher

from .membership import StoredEvents
from .pending import LARGEST, StoredEvent, group_of

__all__ = ["drop", "retry", "stored_events"]


def stored_events(kafka: Kafka, name: str) -> list[StoredEvent]:
    """Return the unfinished events of a processor, oldest first. Raises ConfigError if it has never run."""
    if not kafka.topics([group_of(name)]):
        raise ConfigError(
            f"no processor {name!r} has run on Kafka at {kafka.bootstrap}: it has no topic {group_of(name)!r}"
        )
    with closing(StoredEvents(kafka, name)) as events:
        events.start()
        return sorted(events.events(), key=lambda stored: (stored.timestamp_ms, stored.place, stored.offset))


def retry(kafka: Kafka, name: str, events: Iterable[str] = ()) -> int:
    """Retry failed events, all or those with these ids. Return their number. Raises OrderRefused for other ids."""
    return _order(
        kafka, name, events, lambda stored: replace(stored, state="waiting", attempts=0, due=time.time()).data()
    )


def drop(kafka: Kafka, name: str, events: Iterable[str] = ()) -> int:
    """Delete failed events, all or those with these ids. Return their number. Raises OrderRefused for other ids."""
    return _order(kafka, name, events, lambda _parked: None)


def _order(kafka: Kafka, name: str, events: Iterable[str], value: Callable[[StoredEvent], bytes | None]) -> int:
    chosen = set(events)
    failed = [stored for stored in stored_events(kafka, name) if stored.state == "failed"]
    if unknown := chosen - {stored.id for stored in failed}:
        raise OrderRefused(
            f"not set aside: event {', '.join(sorted(unknown))}; nothing was changed: compactory process failed {name}"
            " lists those that are"
        )
    ordered = [stored for stored in failed if not chosen or stored.id in chosen]
    topic, own = group_of(name), {"message.max.bytes": LARGEST}
    with closing(Publisher(kafka, "process-orders", topic, transactions=False, overrides=own)) as publisher:
        publisher.publish(topic, [(stored.id.encode(), value(stored)) for stored in ordered], None)
    return len(ordered)

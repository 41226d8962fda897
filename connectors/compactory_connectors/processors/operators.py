"""Operators' commands about events that were set aside. They write to the topic that the running processors read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace

from compactory.errors import ConfigError, OrderRefused
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher

from .membership import KeptEvents
from .pending import LARGEST, Parked, group_of

__all__ = ["drop", "kept_events", "retry"]


def kept_events(kafka: Kafka, name: str) -> list[Parked]:
    """Return the events of a processor that are not done, oldest first. Raises ConfigError where it never ran."""
    if not kafka.topics([group_of(name)]):
        raise ConfigError(
            f"no processor {name!r} has run on Kafka at {kafka.bootstrap}: it has no topic {group_of(name)!r}"
        )
    with closing(KeptEvents(kafka, name)) as kept:
        kept.start()
        return sorted(kept.events(), key=lambda parked: (parked.timestamp_ms, parked.place, parked.offset))


def retry(kafka: Kafka, name: str, events: Iterable[str] = ()) -> int:
    """Have events that were set aside tried again, all or those named by id; return their number."""
    return _order(
        kafka, name, events, lambda parked: replace(parked, state="waiting", attempts=0, due=time.time()).data()
    )


def drop(kafka: Kafka, name: str, events: Iterable[str] = ()) -> int:
    """Forget events that were set aside, all or those named by id; return their number."""
    return _order(kafka, name, events, lambda _parked: None)


def _order(kafka: Kafka, name: str, events: Iterable[str], value: Callable[[Parked], bytes | None]) -> int:
    chosen = set(events)
    found = [parked for parked in kept_events(kafka, name) if parked.state == "failed"]
    if unknown := chosen - {parked.id for parked in found}:
        raise OrderRefused(
            f"not set aside: event {', '.join(sorted(unknown))}; nothing was changed: compactory process failed {name}"
            " lists those that are"
        )
    ordered = [parked for parked in found if not chosen or parked.id in chosen]
    topic, own = group_of(name), {"message.max.bytes": LARGEST}
    with closing(Publisher(kafka, "process-orders", topic, transactions=False, overrides=own)) as publisher:
        publisher.publish(topic, [(parked.id.encode(), value(parked)) for parked in ordered], None)
    return len(ordered)

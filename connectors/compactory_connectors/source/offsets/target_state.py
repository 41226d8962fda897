"""An operator's target for a connector, stored in the offsets topic so that restarts keep it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from enum import Enum

import orjson

from compactory.kafka.client import Kafka

from ..config.connector import ConnectorConfig
from .topics import OFFSETS_TOPIC, ensure_topics, publisher_of, stored_values

__all__ = ["Target", "TargetState", "read_target_state", "target_key", "write_target_state"]


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
        """Return True if nothing is to be polled or published."""
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

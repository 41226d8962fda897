"""An operator's target for a connector, kept in the offsets topic so that it outlives the process."""

from __future__ import annotations

from contextlib import closing

from compactory.kafka.client import Kafka

from ..config.connector import ConnectorConfig
from ..control.control import TargetState, target_key
from .topics import OFFSETS_TOPIC, ensure, publisher_of, stored_values

__all__ = ["read_target_state", "write_target_state"]


def read_target_state(kafka: Kafka, connector: str) -> TargetState:
    """The stored target. Raises Unreachable, and ConfigError where the cluster refuses us."""
    if OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return TargetState()
    return TargetState.loads(stored_values(kafka).get(target_key(connector)))


def write_target_state(
    connector: ConnectorConfig, kafka: Kafka, target_state: TargetState, *, create: bool = True
) -> None:
    """Store it under the connector's transactional id, which fences: for the one that may publish, between sessions.

    Raises LeaseLost, Unreachable, ConfigError.
    """
    ensure(kafka, {}, create=create)
    with closing(publisher_of(connector, kafka)) as publisher:
        publisher.open()
        publisher.amend([(target_key(connector.name), target_state.dumps(), [])])

"""The right to write a directory's topic: while a load writes it, nobody else may.

A source owns its topic: what it has stored says what the topic holds, and a load would make that untrue for good. A
load into a connector's topic therefore needs a connector that never published, or whose offsets were reset; it holds
the connector's lease and transactional id, so that a source which starts waits, or fences the load out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import structlog

from compactory.errors import ConfigError, LeaseLost, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.offsets.stored_offsets import StoredOffset, read_offsets
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC
from compactory_connectors.source.operations.overview import running_sources
from compactory_connectors.source.runtime.lease import Lease

__all__ = ["TopicClaim", "owners"]

log = structlog.get_logger("compactory.spark")


def owners(offsets: Iterable[StoredOffset], topic: str, topic_id: str | None, table: bytes | None) -> Iterator[str]:
    """In words, the sources that go on from what they have stored of this topic. Pure.

    ``table`` is the offset's key of the directory's own table: what can't be read of it may be of the topic as well.
    """
    for stored in offsets:
        if stored.value is None:
            continue
        of = stored.offset.topic if stored.offset is not None else None
        same = of is not None and of[0] == topic and (of[1] == topic_id or None in {of[1], topic_id})
        if same or stored.key == table:
            yield f"connector {stored.connector!r} (table {stored.table})"


class TopicClaim:
    """The right to write one topic. Used by one thread; ``table`` is the key of the offset of the directory's table."""

    def __init__(self, kafka: Kafka, topic: str, connector: ConnectorConfig | None, table: bytes | None) -> None:
        self._kafka = kafka
        self._topic = topic
        self._connector = connector
        self._table = table
        self._lease: Lease | None = None
        self._publisher: Publisher | None = None

    def refuse_owned(self) -> None:
        """Raise LeaseLost where a source of the connector runs, ConfigError where one has stored offsets.

        Changes nothing, so that a dry run may ask.
        """
        if self._connector is not None:
            with suppress(Unreachable):  # the source does not reach it either, and its offsets are found
                self._refuse_running(self._connector)
        self.refuse_stored()

    def refuse_stored(self) -> None:
        """Raise ConfigError where a source has stored what the topic holds."""
        found = self._kafka.topics([self._topic]).get(self._topic)
        topic_id = found.topic_id if found is not None else None
        owned = list(owners(read_offsets(self._kafka), self._topic, topic_id, self._table))
        if owned:
            raise ConfigError(
                f"topic {self._topic!r} is that of {', '.join(owned)}: its source goes on from its stored offset and"
                " would never notice the load's changes. Load into Postgres (--to postgres), which the source"
                " publishes; or run compactory source offsets reset, and the source makes the topic equal to its"
                " table when it starts"
            )

    def take(self, longest: float = 30.0, properties: Mapping[str, Any] | None = None) -> Publisher:
        """A publisher that alone may write; ``longest``: seconds that its transaction may take.

        The connector's properties of its producer win over ``properties``.

        Earlier ones are fenced, and what they had open is aborted when this returns. Raises LeaseLost, ConfigError,
        Unreachable.
        """
        if self._connector is not None:
            self._take_lease(self._connector)
        self._drop_publisher()
        name = self._connector.name if self._connector is not None else f"load-{self._topic}"
        self._publisher = Publisher(
            self._kafka,
            name,
            OFFSETS_TOPIC,
            overrides={**(properties or {}), **(self._connector.producer if self._connector is not None else {})},
            timeout=longest,
            transaction_timeout=longest,
            lease=self._lease,
        )
        self._publisher.open()
        self.refuse_stored()
        return self._publisher

    def close(self) -> None:
        """Let go of it; may be called twice."""
        self._drop_publisher()
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _refuse_running(self, connector: ConnectorConfig) -> None:
        if found := running_sources(connector):
            raise LeaseLost(
                f"topic {self._topic!r} is that of connector {connector.name!r}, of which a source is running:"
                f" {'; '.join(found)}; load into Postgres (--to postgres), which it publishes"
            )

    def _take_lease(self, connector: ConnectorConfig) -> None:
        lease = self._lease or Lease(connector, lambda _status: None)
        try:
            lease.take()
        except Unreachable as error:
            lease.close()
            if self._lease is not None or not connector.transactions:
                raise  # a source without transactions can't be fenced
            log.warning("no lease: the database does not answer", connector=connector.name, error=str(error))
            return
        except BaseException:
            lease.close()
            raise
        self._lease = lease

    def _drop_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

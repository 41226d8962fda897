"""One outbox: its database, its topics, relays in this process and in processes that a signal hits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.outbox import Outbox, OutboxRelay
from tests.outbox.mortal import BATCH
from tests.source.workload import wait_until
from tests.stack.mortal import Mortal

__all__ = ["Bench", "Sent"]


class Sent(NamedTuple):
    """A record that a reader of committed transactions sees."""

    id: int
    key: str | None
    value: str | None
    partition: int


class Bench:
    """What a test of the outbox needs."""

    def __init__(self, url: str, kafka: Kafka, address: str, unique: Callable[[str], str]) -> None:
        self.url, self.kafka, self.address = url, kafka, address
        self._unique = unique
        self.outbox = Outbox()
        self.sql = psycopg.connect(url, autocommit=True)
        self._relays: list[OutboxRelay] = []
        self._mortals: list[Mortal] = []

    def topic(self, partitions: int = 1, **config: str) -> str:
        name = self._unique("outbox")
        self.kafka.create_topic(name, partitions=partitions, config=config)
        wait_until(lambda: self.kafka.topics([name]), what="the topic")
        return name

    def publish(self, topic: str, payload: Any, key: Any = "k", **options: Any) -> int:
        with self.sql.transaction():
            return self.outbox.publish(self.sql, topic, payload, key=key, **options)

    def relay(self, **options: Any) -> OutboxRelay:
        relay = OutboxRelay(self.url, self.address, **options)
        relay.start()
        self._relays.append(relay)
        return relay

    def mortal(self, step: str = "", sign: str = "SIGKILL", batch: int = BATCH) -> Mortal:
        self._mortals.append(Mortal("tests.outbox.mortal", self.url, self.address, step, sign, str(batch)))
        return self._mortals[-1]

    def drain(self, **options: Any) -> None:
        """Send what is committed by now."""
        relay = OutboxRelay(self.url, self.address, **options)
        relay.start()
        try:
            assert relay.drain(threading.Event())
        finally:
            assert relay.stop()

    def sent(self, topic: str) -> list[Sent]:
        found = []
        for message in read(self.kafka, topic):
            headers = dict(message.headers() or [])
            key, value = message.key(), message.value()
            found.append(
                Sent(
                    int(headers["compactory-message-id"]),
                    key.decode() if key is not None else None,
                    value.decode() if value is not None else None,
                    message.partition(),
                )
            )
        return found

    def values(self, topic: str) -> list[str | None]:
        return [record.value for record in self.sent(topic)]

    def wait_for(self, topic: str, *values: str, timeout: float = 30.0) -> None:
        wait_until(lambda: self.values(topic) == list(values), timeout, f"{values} in {topic}: {self.values(topic)}")

    def left(self) -> int:
        row = self.sql.execute("SELECT count(*) FROM compactory.kafka_messages").fetchone()
        assert row is not None
        return row[0]

    def info(self, topic: str, column: str) -> Any:
        statement = f"SELECT {column} FROM compactory.kafka_topic_info WHERE topic = %s"
        row = self.sql.execute(statement, [topic]).fetchone()
        return row[0] if row is not None else None

    def holds(self, relay: Mortal) -> bool:
        """Whether it has the lock of a topic."""
        name = f"%-{relay.pid}-%"
        statement = "SELECT FROM compactory.kafka_topic_info WHERE locked_by LIKE %s"
        return bool(self.sql.execute(statement, [name]).rowcount)

    def close(self) -> None:
        for mortal in self._mortals:
            mortal.end()
        for relay in self._relays:
            assert relay.stop()
        self.sql.close()

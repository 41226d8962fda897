"""Topics of a real Kafka as tests need them: transactions left open, holes, cut-off starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from compactory import Token
from tests.stack.apache_kafka import new_admin

Pair = tuple[str | bytes | None, str | bytes | None]


def eventually(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Return the first truthy answer; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {timeout} s: {condition}"
        time.sleep(0.005)


class Topics:
    """Creates and fills topics of one cluster."""

    def __init__(self, address: str, unique: Callable[[str], str]) -> None:
        self.address = address
        self.unique = unique
        self.admin = new_admin({"bootstrap.servers": address})
        self._producer: Producer | None = None

    def create(self, partitions: int = 1, name: str | None = None, replicas: int = 1, **config: str) -> str:
        name = name or self.unique("store")
        settings = {"cleanup.policy": "compact", **{key.replace("_", "."): value for key, value in config.items()}}
        self.admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name].result()
        eventually(lambda: self._is_known(name, partitions))
        return name

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result()

    def grow(self, name: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result()
        eventually(lambda: self._is_known(name, partitions))
        self._producer = None  # the old one would not hear of the new partitions for a while

    def forget_producer(self) -> None:
        """The next record goes out through a new producer: one that knew a former topic may be confused by its ids."""
        self._producer = None

    def cut(self, name: str, offset: int, partition: int = 0) -> None:
        """Delete the records below ``offset``."""
        for future in self.admin.delete_records([TopicPartition(name, partition, offset)]).values():
            future.result()

    def produce(self, name: str, *pairs: Pair, partition: int = 0, timestamp: int = 0) -> list[Token]:
        """Write records outside of transactions; return their tokens once they are acknowledged."""
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.address,
                    "linger.ms": 0,
                    "acks": "all",
                    "compression.type": "lz4",
                    "log_level": 0,
                }
            )
        return send(self._producer, name, pairs, partition, timestamp)

    def commit(self, name: str, *pairs: Pair, partition: int = 0) -> list[Token]:
        """Write records in one committed transaction; return their tokens once its mark is behind them."""
        with self.transaction() as producer:
            tokens = send(producer, name, pairs, partition)
            producer.commit_transaction(10)
        self._wait_for_mark(tokens[-1])
        return tokens

    def abort(self, name: str, *pairs: Pair, partition: int = 0) -> None:
        """Write records in a transaction that is aborted, and return once its mark is behind them."""
        with self.transaction() as producer:
            tokens = send(producer, name, pairs, partition)
            producer.abort_transaction(10)
        self._wait_for_mark(tokens[-1])

    @contextmanager
    def transaction(self, transactional_id: str | None = None, **properties: Any) -> Any:
        """A producer within a transaction that the test ends; aborted where it does not."""
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "transactional.id": transactional_id or self.unique("txn"),
                "linger.ms": 0,
                "log_level": 0,
            }
            | {name.replace("_", "."): value for name, value in properties.items()}
        )
        producer.init_transactions(20)
        producer.begin_transaction()
        try:
            yield producer
        except BaseException:
            with suppress(KafkaException):  # where it is over already; what went wrong is the other one
                producer.abort_transaction(10)
            raise

    def _wait_for_mark(self, last: Token) -> None:
        """Wait for the mark behind a transaction's last record: Kafka answers before it has written it."""
        place = TopicPartition(last.topic, last.partition)

        def there() -> bool:
            return bool(self.admin.list_offsets({place: OffsetSpec.latest()})[place].result().offset > last.offset + 1)

        eventually(there)

    def _is_known(self, name: str, partitions: int) -> bool:
        topic = self.admin.list_topics(timeout=5).topics.get(name)
        return topic is not None and len(topic.partitions) == partitions


def send(producer: Producer, name: str, pairs: Iterable[Pair], partition: int = 0, timestamp: int = 0) -> list[Token]:
    """Produce and wait for the acknowledgements."""
    tokens: list[Token] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        tokens.append(Token.from_message(message))

    for key, value in pairs:
        while True:
            try:
                producer.produce(name, value, key, partition, on_delivery=delivered, timestamp=timestamp)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(30)
    return tokens

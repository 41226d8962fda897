"""`Outbox`: publishes messages in the caller's transaction, or directly to Kafka."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, LiteralString, NoReturn, get_args
from uuid import uuid4

import structlog

from compactory.errors import ConfigError, Unreachable, WriteRefused
from compactory.kafka.client import Kafka, KafkaError, KafkaException, enqueue, kafka_errors
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.postgres.caller import first, is_async, write
from compactory_sql import query

from .message import MESSAGE_ID, OutboxMessage, check_all, encoded, headers_json
from .topic_facts import TopicFacts, TopicFailed

__all__ = ["Outbox"]

log = structlog.get_logger("compactory.outbox")

_POLL = 0.005  # seconds; short, because another thread may receive the delivery reports

Backend = Literal["db", "kafka", "kafka_async"]

_TIMEOUT = 30.0  # seconds for acknowledgements
_DEFAULTS = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "message.timeout.ms": _TIMEOUT * 1000,
    "topic.metadata.propagation.max.ms": 5_000,  # until a topic that the broker does not know is an error
}


class Outbox:
    """Publishes messages. Thread-safe; the connections of the calls are the caller's.

    ``backend``: with ``db`` messages are rows that commit with the caller's transaction, and a relay sends them; Kafka
    need not be reachable. ``kafka`` sends at once and waits until all replicas have the messages; ``kafka_async`` does
    not wait, and logs errors. Both need ``kafka`` and are not part of the transaction.
    Raises ConfigError.
    """

    def __init__(
        self,
        backend: Backend = "db",
        kafka: str | Mapping[str, Any] | Kafka | None = None,
    ) -> None:
        if backend not in get_args(Backend):
            raise ConfigError(f"unknown backend {backend!r}: choose {', '.join(get_args(Backend))}")
        if backend != "db" and kafka is None:
            raise ConfigError(f"backend {backend!r} needs kafka=: bootstrap servers, or librdkafka's properties")
        self._direct = _Direct(kafka, wait=backend == "kafka") if backend != "db" and kafka is not None else None

    def publish(
        self,
        conn: Any,
        topic: str,
        payload: bytes | str | None,
        key: bytes | str | None = None,
        partition_key: str | None = None,
        headers: Mapping[str, str | bytes | None] | None = None,
        deliver_at: datetime | None = None,
    ) -> Any:
        """Publish one message and return its id, which the record carries in the header ``compactory-message-id``.

        With ``deliver_at``, an aware datetime, the message is not sent before that time; messages of the same key that
        are published later may be sent earlier.

        Await the id if the connection is asynchronous. Raises as :meth:`publish_list` does. Backends other than ``db``
        have no ids and return 0.
        """
        message = OutboxMessage(
            topic=topic,
            payload=payload,
            key=key,
            partition_key=partition_key,
            headers=headers,
            deliver_at=deliver_at,
        )
        return first(self.publish_list(conn, [message]))

    def publish_list(self, conn: Any, messages: Iterable[OutboxMessage]) -> Any:
        """Publish messages in their order by one statement in the transaction of ``conn``; return the list of ids.

        ``conn`` is a psycopg connection, or an SQLAlchemy session or connection on psycopg. Await the result if it is
        asynchronous. The transaction is never committed here. Raises WriteRefused with every problem before anything is
        written, and in autocommit without a transaction; ConfigError if the database has no outbox or the role may not
        publish; psycopg.Error.
        """
        messages = list(messages)
        check_all(messages)
        if self._direct is not None:
            if any(message.deliver_at is not None for message in messages):
                raise WriteRefused("deliver_at needs the outbox in the database: Outbox(backend='db')")
            return to_thread(self._direct.send, messages) if is_async(conn) else self._direct.send(messages)
        return write(conn, "publish", "message", "outbox", *_statement(messages))

    def close(self) -> None:
        """Wait until Kafka has the messages of ``kafka_async``. Raises Unreachable after 30 seconds. Idempotent."""
        if self._direct is not None:
            self._direct.flush()


class _Direct:
    """Sends messages to Kafka without the table. Thread-safe."""

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, *, wait: bool) -> None:
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._wait = wait
        self._facts = TopicFacts(self._kafka)
        self._last_error: KafkaError | None = None
        self._producer = self._kafka.producer(_DEFAULTS, {}, self._remember)

    def send(self, messages: Sequence[OutboxMessage]) -> list[int]:
        """Send messages; return a zero for each."""
        ended: list[tuple[str, KafkaError | None]] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            ended.append((message.topic(), error))
            if error is not None and not self._wait:
                log.error("message not sent", topic=message.topic(), error=error.str())

        with kafka_errors("publish", self._kafka.bootstrap, lambda: self._last_error):
            for message in messages:
                self._produce(message, delivered)
        self._producer.poll(0)
        while self._wait and len(ended) < len(messages):
            self._producer.poll(_POLL)
        failed = [(topic, error) for topic, error in ended if error is not None]
        if self._wait and failed:
            self._raise(
                f"{len(failed)} of {len(messages)} messages, the first for topic {failed[0][0]!r}", failed[0][1]
            )
        return [0] * len(messages)

    def flush(self) -> None:
        unacknowledged = self._producer.flush(_TIMEOUT)
        if unacknowledged:
            self._raise(f"{unacknowledged} messages", KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001

    def _raise(self, subject: str, error: KafkaError) -> NoReturn:
        if error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001
            why = f": {self._last_error.str()}" if self._last_error is not None else ""
            raise Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap} did not acknowledge {subject} in time{why}")
        with kafka_errors(f"publish {subject}", self._kafka.bootstrap):
            raise KafkaException(error)

    def _produce(self, message: OutboxMessage, delivered: Any) -> None:
        headers = [(MESSAGE_ID, uuid4().hex), *(message.headers or {}).items()]
        partition = -1 if message.partition_key is None else self._partition_of(message.topic, message.partition_key)
        deadline = time.monotonic() + (_TIMEOUT if self._wait else 0.0)
        options = {"partition": partition, "headers": headers, "on_delivery": delivered}
        enqueue(self._producer, deadline, message.topic, encoded(message.payload), encoded(message.key), **options)

    def _partition_of(self, topic: str, partition_key: str) -> int:
        try:
            partitions = self._facts.partitions(topic)
        except TopicFailed as error:
            raise ConfigError(str(error)) from None
        partitioner = {**_DEFAULTS, **self._kafka.properties()}["partitioner"]
        number = partition_by(partition_key.encode(), partitions, partitioner)
        return -1 if number is None else number

    def _remember(self, error: KafkaError) -> None:
        self._last_error = error


def _statement(messages: Sequence[OutboxMessage]) -> tuple[LiteralString, tuple[Any, ...]]:
    """Return the statement and its parameters. One message has no arrays: they would double the cost."""
    deliver_times = [message.deliver_at for message in messages]
    is_scheduled = any(deliver_at is not None for deliver_at in deliver_times)
    if len(messages) == 1 and not is_scheduled:
        return query("outbox/publish"), _row(messages[0])
    columns = tuple(map(list, zip(*map(_row, messages), strict=True)))
    if is_scheduled:
        return query("outbox/publish_at_list"), (*columns, deliver_times)
    return query("outbox/publish_list"), columns


def _row(message: OutboxMessage) -> tuple[Any, ...]:
    return (
        message.topic,
        encoded(message.payload),
        encoded(message.key),
        message.partition_key,
        headers_json(message.headers),
    )

"""Publishing in the caller's transaction: the one call that services use, whatever the backend."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, LiteralString, get_args
from uuid import uuid4

import structlog
from psycopg.rows import tuple_row

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Kafka, KafkaError, kafka_errors
from compactory_connectors.database.caller import async_driver, driver, is_async, remedies
from compactory_connectors.source.publish.partitioner import partition_of
from compactory_sql import query

from .encoding import Encoder, encoder_of
from .message import MESSAGE_ID, OutboxMessage, check_all, encoded, headers_json

__all__ = ["Outbox"]

log = structlog.get_logger("compactory.outbox")

Backend = Literal["db", "kafka", "kafka_async"]

_DEFAULTS = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random", "compression.type": "lz4"}
_TIMEOUT = 30.0  # seconds for acknowledgements


class Outbox:
    """Publishes messages. Thread-safe, as far as the connections that it is given are.

    ``backend``: with ``db`` messages are rows that commit with the caller's transaction and that a relay sends; Kafka
    need not be reachable. ``kafka`` sends at once and waits until all replicas have the messages; ``kafka_async`` does
    not wait, and logs what fails. Both need ``kafka`` and take no part in the transaction.

    ``encoders`` maps a topic to what its payloads have to fit: a pydantic model, a JSON Schema, a serializer of a
    Schema Registry, or a function that returns bytes. Raises ConfigError.
    """

    def __init__(
        self,
        backend: Backend = "db",
        kafka: str | Mapping[str, Any] | Kafka | None = None,
        *,
        encoders: Mapping[str, Any] | None = None,
    ) -> None:
        if backend not in get_args(Backend):
            raise ConfigError(f"unknown backend {backend!r}: choose {', '.join(get_args(Backend))}")
        if backend != "db" and kafka is None:
            raise ConfigError(f"backend {backend!r} needs kafka=: bootstrap servers, or librdkafka's properties")
        self._encoders: dict[str, Encoder] = {t: encoder_of(t, given) for t, given in (encoders or {}).items()}
        self._direct = _Direct(kafka, wait=backend == "kafka") if backend != "db" and kafka is not None else None

    def publish(
        self,
        conn: Any,
        topic: str,
        payload: Any,
        key: bytes | str | None = None,
        partition_key: str | None = None,
        headers: Mapping[str, str | bytes | None] | None = None,
    ) -> Any:
        """Publish one message and return its id, which the record carries in the header ``compactory-message-id``.

        An int, to be awaited where the connection is asynchronous. See :meth:`publish_list`; backends other than ``db``
        have no ids and return 0.
        """
        message = OutboxMessage(topic=topic, payload=payload, key=key, partition_key=partition_key, headers=headers)
        found = self.publish_list(conn, [message])
        return _first(found) if isinstance(found, Awaitable) else found[0]

    def publish_list(self, conn: Any, messages: Iterable[OutboxMessage]) -> Any:
        """Publish messages in their order by one statement within the transaction of ``conn``; return a list of ids.

        ``conn`` is a connection of psycopg, or a session or connection of SQLAlchemy on psycopg; of an asynchronous one
        the result has to be awaited. It is never committed here, and must not be in autocommit without a transaction.
        Raises WriteRefused with every problem before anything is written, ConfigError where the database has no outbox
        or the role may not publish, psycopg.Error.
        """
        ready = [self._encoded(message) for message in messages]
        check_all(ready)
        if self._direct is not None:
            numbers = self._direct.send(ready)
            return _ready(numbers) if is_async(conn) else numbers
        if is_async(conn):
            return _publish_async(conn, ready)
        inner = driver(conn, "publish", "message")
        with remedies(inner, "outbox"):
            return _ids(inner.cursor(row_factory=tuple_row).execute(*_statement(ready)).fetchall())

    def close(self) -> None:
        """Send what ``kafka_async`` has not sent yet; raises Unreachable where that takes too long. Idempotent."""
        if self._direct is not None:
            self._direct.flush()

    def _encoded(self, message: OutboxMessage) -> OutboxMessage:
        encode = self._encoders.get(getattr(message, "topic", ""))  # callers need not have a type checker
        if encode is None or message.payload is None:
            return message
        return replace(message, payload=encode(message.topic, message.payload))


class _Direct:
    """Sends to Kafka in place of the table. Thread-safe."""

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, *, wait: bool) -> None:
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._wait = wait
        self._last: KafkaError | None = None
        self._producer = self._kafka.producer(_DEFAULTS, {}, self._remember)

    def send(self, messages: Sequence[OutboxMessage]) -> list[int]:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
                if not self._wait:
                    log.error("message not sent", topic=message.topic(), error=error.str())

        with kafka_errors("publish", self._kafka.bootstrap, lambda: self._last):
            for message in messages:
                self._produce(message, delivered)
        if self._wait:
            self.flush()
            if failures:
                raise CompactoryError(f"Kafka at {self._kafka.bootstrap} did not take a message: {failures[0].str()}")
        else:
            self._producer.poll(0)
        return [0] * len(messages)

    def flush(self) -> None:
        left = self._producer.flush(_TIMEOUT)
        if left:
            why = f": {self._last.str()}" if self._last is not None else ""
            raise Unreachable(
                "Kafka", f"Kafka at {self._kafka.bootstrap} did not acknowledge {left} messages in {_TIMEOUT:g} s{why}"
            )

    def _produce(self, message: OutboxMessage, delivered: Any) -> None:
        headers: list[tuple[str, str | bytes | None]] = [(MESSAGE_ID, uuid4().hex), *(message.headers or {}).items()]
        place = -1
        if message.partition_key is not None:
            found = self._kafka.topics([message.topic]).get(message.topic)
            if found is None:
                raise ConfigError(f"topic {message.topic!r} does not exist on Kafka at {self._kafka.bootstrap}")
            place = partition_of(message.partition_key.encode(), len(found.partitions))
        self._producer.produce(
            message.topic, encoded(message.payload), encoded(message.key), place, delivered, headers=headers
        )

    def _remember(self, error: KafkaError) -> None:
        self._last = error


async def _publish_async(conn: Any, messages: Sequence[OutboxMessage]) -> list[int]:
    inner = await async_driver(conn, "publish", "message")
    with remedies(inner, "outbox"):
        cursor = await inner.cursor(row_factory=tuple_row).execute(*_statement(messages))
        return _ids(await cursor.fetchall())


def _statement(messages: Sequence[OutboxMessage]) -> tuple[LiteralString, dict[str, Any]]:
    """The statement that publishes, and its parameters. One message needs no arrays: they cost as much as the rest."""
    columns: dict[str, list[Any]] = {
        "topic": [message.topic for message in messages],
        "payload": [encoded(message.payload) for message in messages],
        "key": [encoded(message.key) for message in messages],
        "partition_key": [message.partition_key for message in messages],
        "headers": [headers_json(message.headers) for message in messages],
    }
    if len(messages) == 1:
        return query("outbox/publish"), {name: values[0] for name, values in columns.items()}
    return query("outbox/publish_list"), columns


def _ids(rows: Sequence[Any]) -> list[int]:
    return [row[0] for row in rows]


async def _ready(value: list[int]) -> list[int]:
    return value


async def _first(found: Awaitable[list[int]]) -> int:
    return (await found)[0]

"""Failed records in a dead-letter topic, with the headers that Kafka Connect writes.

They are acknowledged before the transaction of their batch is committed: none is lost, and after a crash in between
some are there twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactory.errors import Unreachable
from compactory.kafka.client import Kafka, KafkaError, Message

from .record import Failed

__all__ = ["DeadLetters"]

_SECONDS = 10.0


class DeadLetters:
    """A topic for what fails. Owned by one thread. Raises ConfigError where the topic does not exist."""

    def __init__(self, kafka: Kafka, topic: str, sink: str, *, with_headers: bool = True) -> None:
        self._topic = topic
        self._sink = sink
        self._with_headers = with_headers
        self._refused: list[str] = []
        self._producer = kafka.producer(
            {"linger.ms": 5}, {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 9000}, lambda _: None
        )

    def send(self, failed: Sequence[Failed]) -> None:
        """Return when Kafka has them. Raises Unreachable."""
        self._refused.clear()
        for item in failed:
            self._producer.produce(
                self._topic,
                value=item.record.value,
                key=item.record.key,
                headers=[*item.record.headers, *self._headers(item)],
                on_delivery=self._delivered,
            )
        left = self._producer.flush(_SECONDS) if failed else 0
        if left or self._refused:
            reason = self._refused[0] if self._refused else f"no answer within {_SECONDS:.0f} s"
            raise Unreachable("Kafka", f"dead-letter topic {self._topic!r} did not take a record: {reason}")

    def _headers(self, item: Failed) -> list[tuple[str, str | bytes | None]]:
        topic, partition, offset = item.record[:3]
        found = {
            "topic": topic,
            "partition": str(partition),
            "offset": str(offset),
            "connector.name": self._sink,
            "task.id": "0",
            "stage": "TASK_PUT" if item.error else "VALUE_CONVERTER",
            "class.name": "compactory_connectors.sink",
            "exception.class.name": item.error or "RecordRefused",
            "exception.message": item.reason,
        }
        return [(f"__connect.errors.{name}", text) for name, text in found.items()] if self._with_headers else []

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error.str())

"""A transactional producer that fences the earlier producers of its topic (KIP-98)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka, KafkaError, KafkaException, enqueue
from compactory.kafka.transactional_producer import TransactionalProducer, was_ended_outside
from compactory.write.delivery import Record, Shipment

__all__ = ["FencedProducer", "OutcomeUnknown"]

_DEFAULTS: dict[str, Any] = {
    "partitioner": "murmur2_random",  # as Java clients, the source and DirectoryWriter: a key stays in its partition
    "compression.type": "lz4",
    "linger.ms": 1,  # with 0 the client's thread spins while records wait until their partition is in the transaction
    # After a commit the broker writes its markers for some milliseconds and refuses the next transaction until then.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 100,
}
_JOIN_INTERVAL = 0.001  # seconds between two calls for records that join a transaction
_ABORT_TIMEOUT = 2.0  # seconds; after it a fence or the transaction's timeout ends the transaction


class OutcomeUnknown(CompactoryError):
    """Kafka did not answer a commit: it may be done. ``retryable`` with an Idempotency-Key only."""


class FencedProducer(TransactionalProducer):
    """Writes records in transactions under the transactional id of a directory's topic. Owned by one thread.

    After any error it must be closed. Opening the next one ends a transaction that is still open.
    """

    def __init__(self, kafka: Kafka, topic: str, timeout: float, max_record_bytes: int) -> None:
        self._topic = topic
        self._timeout = timeout
        transactional_id = f"compactory-writes-{topic}"
        required = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(timeout * 1000),
            "message.timeout.ms": int(timeout * 1000),
            "message.max.bytes": max_record_bytes,  # a batch has at most this size too
            "enable.idempotence": True,
            "acks": "all",
        }
        super().__init__(kafka, transactional_id, _DEFAULTS, required)

    def open(self) -> None:
        """Fence every earlier producer of the topic. On return their transactions are committed or aborted.

        Raises Unreachable, ConfigError, CompactoryError.
        """
        self._take_over(self._topic, self._timeout)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one Kafka transaction, and commit it at the end.

        Raises OutcomeUnknown if Kafka does not answer the commit. After any other error nothing was written:
        LeaseLost if another producer was opened, Unreachable, CompactoryError.
        """
        try:
            with self._mapped("write in a transaction"):
                self._producer.begin_transaction()
                yield
        except BaseException as error:
            self._abort(_ABORT_TIMEOUT)
            if was_ended_outside(error):
                raise OutcomeUnknown("Kafka had ended the transaction before all of it was written") from error
            raise
        self._commit()

    def send(
        self, topic: str, records: Sequence[Record], next_records: Callable[[], Sequence[Record]] = tuple
    ) -> list[tuple[int, int]]:
        """Send records in a `transaction`; return partition and offset of each once every in-sync replica has it.

        The first records of a transaction wait some milliseconds until Kafka has begun it. Until then ``next_records``
        is called every millisecond, and the records that it returns are sent too.
        """
        deadline = time.monotonic() + self._timeout
        shipments = list[Shipment]()
        try:
            while records:
                shipment = Shipment(records)
                shipments.append(shipment)
                for number, (key, value) in enumerate(records):
                    on_delivery = partial(shipment.settle, number)
                    enqueue(self._producer, deadline, topic, value, key, on_delivery=on_delivery)
                records = ()
                while not (
                    records or any(shipment.has_reports for shipment in shipments) or time.monotonic() > deadline
                ):
                    self._producer.poll(_JOIN_INTERVAL)
                    records = next_records()
            self._producer.flush(max(0.0, deadline - time.monotonic()))
        except SystemError as error:  # confluent_kafka 2.16 wraps a fatal error like this
            raise error.__cause__ or error from None
        errors = [error for shipment in shipments for error in shipment.errors.values()]
        if errors:
            raise KafkaException(errors[0])
        if not all(shipment.complete for shipment in shipments):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records were not acknowledged"))  # noqa: SLF001
        return [origin for shipment in shipments for origin in shipment.places if origin is not None]

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(self._timeout)
        except KafkaException as error:
            if error.args[0].txn_requires_abort() and not was_ended_outside(error):
                self._abort(_ABORT_TIMEOUT)
                with self._mapped("commit a transaction"):
                    raise
            raise OutcomeUnknown(f"Kafka did not confirm the commit: {error.args[0].str()}") from error
